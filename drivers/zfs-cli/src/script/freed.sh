# The blocks of a zvol's snapshot that were freed after a transaction and hold nothing since, as zdb shows them: each
# pointer without a block has the time at which it became so. A line for each: offset, level, size of such a block.
# Every pointer says how many blocks lie below it. So what zdb could not read, and left out, is noticed; then the last
# line is missing. Only root may run zdb. Without the feature hole_birth a pointer has no such time, and nothing is shown.
#
# SUDO TXG SNAPSHOT
sudo=$1 of=$3
case $(zpool get -H -o value feature@hole_birth "${of%%[/@]*}") in
active) ;;
*)
    echo "the pool has no active feature hole_birth: it does not say when blocks were freed" >&2
    exit 1
    ;;
esac
blocks() {
    if [ -O / ]; then zdb -ddddd "$of" 1; else "$sudo" -n -- zdb -ddddd "$of" 1; fi
    echo "ended $?"
}
blocks | since=$2 LC_ALL=C awk '
function level_ends(level, one) {
    for (one = 1; one <= level; one++) {
        if (one in wanted && wanted[one] != found[one]) bad = 1
        delete wanted[one]
    }
}
BEGIN { since = ENVIRON["since"] + 0 }
/^ended / { code = $2; ended = 1 }
/zvol object/ { seen = 1 }
$2 ~ /^L[0-9]$/ && $1 ~ /^[0-9a-f]+$/ {
    level = substr($2, 2) + 0
    level_ends(level)
    fill = birth = size = ""
    for (i = 3; i <= NF; i++) {
        if ($i == "EMBEDDED") fill = 1
        if ($i ~ /^F=/) fill = substr($i, 3) + 0
        if ($i ~ /^B=/) birth = substr($i, 3) + 0
        if ($i ~ /^[0-9a-f]+L($|\/)/) { size = $i; sub(/L.*/, "", size) }
    }
    if (birth == "" || size == "") bad = 1
    if (fill == "") {
        if (birth > since) print $1, level, size
    } else {
        found[level + 1] += fill
        if (level > 0) { wanted[level] = fill; found[level] = 0 }
    }
}
END {
    level_ends(9)
    if (bad || !ended || !seen || code) {
        print "zdb did not show all blocks" > "/dev/stderr"
        exit 1
    }
    print "all"
}'
