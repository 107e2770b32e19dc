# One page of a list. One command for each scope shows all that is below its parent, and one awk keeps what is
# on the page: a process of `zfs` costs more than what it prints. Before each answer stands a line with its
# scope, and after it one that says how the command ended; nothing that a value looks like can begin like those.
#
# A row begins with the name of something below the parent, and goes on until the next one. What is in something
# comes after it, so whether it is empty is known at the end. Places are compared as texts of one width: numbers
# of ZFS are longer than awk counts. They are sorted only where not all of them are on the page. The last line
# says after a tab where the page ends, if there is more.
#
# A parent that does not exist has nothing in it, and only a message with its name says so: any other failure is one
# of the whole list. What was not looked through shows in messages alone, not in how the command ended.
#
# MAX AFTER HELPER WANTED [RULE HAVING LACKING PARENT DEPTH KINDS]... -- ZFS...
max=$1 after=$2 helper=$3 wanted=$4
shift 4
scopes=0
for word; do
    [ "$word" != -- ] || break
    scopes=$((scopes + 1))
done
mark=.scope.$$.
places() {
    left=$scopes
    while [ $left -gt 0 ]; do
        printf '%s\t%s\t%s\t%s\t%s\n' "$mark" "$1" "$2" "$3" "$4"
        parent=$4 depth=$5 kinds=$6
        shift 6
        left=$((left - 6))
        one $left "$@"
        printf '%s%s\n' "$mark" $?
    done
}
one() {
    shift $(($1 + 2))
    {
        complaint=$(exec "$@" get -Hp -d "$depth" -t "$kinds" -o name,property,value,source "$wanted" "$parent" 2>&1 >&3 3>&-)
    } 3>&1
    code=$?
    [ -z "$complaint" ] || printf '%s\n' "$complaint" >&2
    [ $code -le 1 ] || return $code
    case "$code $complaint" in
    "1 "*"'$parent': dataset does not exist"* | "1 "*"'$parent': no such pool or dataset"*) ;;
    "1 "* | *'cannot iterate '*)
        echo "not everything in '$parent' could be listed" >&2
        return 1
        ;;
    *) return 0 ;;
    esac
    said=$("$@" get -H -o name type "${parent%%/*}" 2>&1 >/dev/null) && return 1
    not_imported
    return 4
}
places "$@" | mark=$mark max=$max after=$after helper=$helper left=$((scopes / 6)) LC_ALL=C awk -F '\t' '
function row_ends(parts, part, own) {
    if (row == "") return
    parts = split(row, part, "\t")
    own = part[parts] == "local" || part[parts] == "received"
    if (part[2] == "createtxg") txg = part[3]
    if (part[2] == "guid") guid = part[3]
    if (own && part[2] == having) fits = 1
    if (own && part[2] == lacking) unfit = 1
    row = ""
}
function object_ends(place, key) {
    row_ends()
    place = sprintf("%20s/%20s", txg, guid)
    if (name != "" && fits && !unfit && place > after) {
        key = place "\t" name
        shown[key] = text
        if (rule == "empty") held[name] = key
    }
    name = text = ""
}
function object_begins(above) {
    object_ends()
    name = above = $1
    fits = rule == "helper" && index(name, "@" helper)
    unfit = 0
    txg = guid = ""
    if (rule == "empty" && sub(/[\/@][^\/@]*$/, "", above)) full[above] = 1
}
function sort(count, gap, i, j, one) {
    for (gap = int(count / 2); gap > 0; gap = int(gap / 2))
        for (i = gap + 1; i <= count; i++) {
            one = places[i]
            for (j = i; j > gap && places[j - gap] > one; j -= gap) places[j] = places[j - gap]
            places[j] = one
        }
}
BEGIN {
    mark = ENVIRON["mark"]; after = ENVIRON["after"] ""; helper = ENVIRON["helper"]
    max = ENVIRON["max"] + 0; left = ENVIRON["left"] + 0
    ORS = ""
}
index($0, mark) == 1 {
    object_ends()
    if (NF == 1) {
        code = substr($0, length(mark) + 1) + 0
        if (code > worst) worst = code
        left--
    } else {
        rule = $2; having = $3; lacking = $4; parent = $5
    }
    next
}
NF > 2 && index($1, parent) == 1 && (substr($1, length(parent) + 1, 1) ~ /^[\/@]?$/) {
    if ($2 == "type") object_begins()
    row_ends()
    row = $0
    text = text $0 "\n"
    next
}
{ row = row "\n" $0; text = text $0 "\n" }
END {
    object_ends()
    for (one in held) if (one in full) delete shown[held[one]]
    count = 0
    for (one in shown) places[++count] = one
    if (count > max) {
        sort(count)
        count = max
        last = places[max]
        sub(/\t.*/, "", last)
    }
    for (i = 1; i <= count; i++) print shown[places[i]]
    gsub(/ /, "", last)
    print "\t" last "\n"
    exit (left ? 3 : worst)
}'
