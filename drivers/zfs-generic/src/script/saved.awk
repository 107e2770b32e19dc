# Compares or merges elements of a saved configuration: JSON whose top level holds lists.
#
# The first file holds the elements that are wanted, in one text or several; one with a member "absent" must
# not be there, unless another one of its name is wanted, and of one with a member "lists" it only counts that
# its "subsystems" have that name among them.
# The second is what is saved. Everything else in it stays, in its order. `mode` is `same` (exit 0
# if all that is wanted is there as it is wanted), `named` (the same, but only by name) or `merge`
# (prints the new text), `listed` (prints what the wanted ports list, as it is saved), `portals` (prints
# those of the wanted targets) or `restored` (prints the subsystems that the wanted port lists). Exit 3: not so.
# Exit 4: a file is no such JSON; nothing is printed. Any other end is that of an awk which failed.
# `drop` is a subsystem that no saved port may list, also one that the host does not have any more.
#
# The reasons why no file comes to the driver to be merged there: "Saved configurations stay on their host" in
# docs/development.md.
#
# Lines mean nothing, but that strings end in them. A line that holds one member of an element, as tools
# write them, is read at once. Most elements are not asked for, and laid out as they are printed here:
# those are passed over.

BEGIN { document = 0; broken = 0
    names["storage_objects"] = "plugin name"; names["targets"] = "fabric wwn"
    names["subsystems"] = "nqn"; names["ports"] = "portid"; names["hosts"] = "nqn" }

FNR == 1 { finish(); document++; depth = 0; started = 0; ended = 0 }

document == 2 && depth > 2 { of_element($0); next }

document == 2 && depth == 2 && listed && $0 == "    {" && (expect[2] == "value" || expect[2] == "first") && \
    mode != "restored" && (drop == "" || section != "ports") { pass_over(); next }

{ pieces($0) }

END {
    finish()
    if (broken) exit 4
    if (mode == "merge") merge()
    else if (mode == "listed" || mode == "portals") show()
    else if (mode == "restored") show_subsystems()
    else exit compare() ? 0 : 3
}

function finish() {
    if (document > 0 && (depth != 0 || (document > 1 && started && !ended))) broken = 1
}

# A line of an element.
function of_element(line) {
    if (kind[depth] == "{" && expect[depth] == "key" && line ~ /^ *"[^"\\]*": ("[^"\\]*"|[-+.0-9a-zA-Z]+),?$/)
        one_member(line)
    else pieces(line)
}

# An element that is laid out as it would be printed, and is not asked for, stays as it is. It is read from
# one "}" to the next: elements have in common most of what is between these, or all but the strings in it, and
# where that leads is found out once. Any other element is read again, line by line.
function pass_over(    text, part, state, rest, lines, n, i) {
    text = "    {"; state = "{ "; RS = "}"
    while (length(state) > 1 && (getline part) > 0) {
        if (state == "{ ") part = "\n" part
        text = text part "}"
        state = after(state, part)
    }
    RS = "\n"
    # Something has to follow, whatever this was.
    if (length(state) > 1 || (getline rest) <= 0) { broken = 1; return }
    if (state == "." && (rest == "" || rest == ",") && !(known_by(text) in asked)) {
        count[2]++; expect[2] = rest == "," ? "value" : "comma"
        i = ++elements[2, section]
        if (mode == "merge") element[2, section, i] = text
        return
    }
    n = split(text rest, lines, "\n")
    for (i = 1; i <= n; i++) if (depth > 2) of_element(lines[i]); else pieces(lines[i])
}

# Where a part leads. A state is the brackets that are open within the list, and what is due: the first in the
# last of them (" "), after a comma the next one (","), or a comma or its end ("."). There is none where a part is
# laid out otherwise.
function after(state, part,    now, like, lines, n, i) {
    now = leads[state part]
    if (now != "") return now
    like = part
    # Most strings are values: here they go. A match that is no such string leaves a quote right after the end of
    # one, which leads nowhere.
    gsub(/": "[^"\\\n]*"/, "\": \"\"", like)
    now = leads[state like]
    if (now == "") {
        now = state
        n = split(like, lines, "\n")
        if (n < 2) return ""
        if (lines[1] == ",") now = substr(now, 1, length(now) - 1) ","
        else if (lines[1] != "") return ""
        lines[n] = lines[n] "}"
        for (i = 2; i <= n && now != ""; i++) now = after_line(now, lines[i])
    }
    return leads[state part] = leads[state like] = now
}

function after_line(state, line,    within, due, start) {
    within = substr(state, 1, length(state) - 1)
    due = line ~ /,$/ ? "," : "."
    start = pad(length(within) + 1)
    if (state ~ /[.]$/) {
        start = start (within ~ /[{]$/ ? "}" : "]")
        return (line == start || line == (start ",")) ? substr(within, 1, length(within) - 1) due : ""
    }
    start = start "  "
    if (substr(line, 1, length(start)) != start) return ""
    line = substr(line, length(start) + 1)
    if (within ~ /[{]$/) {
        if (!match(line, /^"([^"\\]|\\.)*": /)) return ""
        line = substr(line, RLENGTH + 1)
    }
    if (line == "{" || line == "[") return length(within) < 32 ? within line " " : ""
    return line ~ /^("([^"\\]|\\.)*"|[-+.0-9a-zA-Z]+|\[\]|[{][}]),?$/ ? within due : ""
}

# What such an element is known by: of two members with one name the last one counts.
function known_by(text,    fields, i, start, rest, at, s) {
    if (!(section in names)) return ""
    split("", member); split(names[section], fields, " ")
    for (i = 1; i in fields; i++) {
        start = "\n      \"" fields[i] "\": "; rest = text
        while (at = index(rest, start)) {
            rest = substr(rest, at + length(start))
            s = substr(rest, 1, index(rest, "\n") - 1)
            if (s !~ /[]}[{],?$/) { sub(/,$/, "", s); member[fields[i]] = s }
        }
    }
    return identify()
}

# A line, from quote to quote: what is in strings and what is not.
function pieces(line,    n, i, parts, inside, text, backslashes) {
    n = split(line, parts, "\"")
    for (i = 1; i <= n; i++) {
        if (!inside) { if (parts[i] != "") plain(parts[i]); inside = 1; text = ""; continue }
        # What follows the last quote is in no string.
        if (i == n) { broken = 1; return }
        text = text parts[i]
        if (index(text, "\\")) {
            backslashes = text; sub(/.*[^\\]/, "", backslashes)
            if (length(backslashes) % 2 == 1) { text = text "\""; continue }
        }
        inside = 0
        string("\"" text "\"")
    }
}

# The same as its pieces would do.
function one_member(line,    more, at, name, s) {
    sub(/^ */, "", line)
    if (more = (substr(line, length(line)) == ",")) line = substr(line, 1, length(line) - 1)
    at = index(line, "\": ")
    name = substr(line, 2, at - 2); s = substr(line, at + 3)
    key[depth] = "\"" name "\""
    if (depth == 7 && section == "targets" && key[5] == "\"portals\"") portal(key[7], s)
    if (mode == "restored") note(s)
    separate(); buffer = buffer line
    if (depth == 3 && listed) member[name] = s
    count[depth]++; expect[depth] = more ? "key" : "comma"
}

function plain(piece,    i, c, scalar) {
    gsub(/[ \t\r\n]+/, " ", piece)
    scalar = ""
    for (i = 1; i <= length(piece); i++) {
        c = substr(piece, i, 1)
        if (index("{}[]:, ", c) == 0) { scalar = scalar c; continue }
        if (scalar != "") { value(scalar); scalar = "" }
        if (c == "{" || c == "[") open(c)
        else if (c == "}" || c == "]") close_(c)
        else if (c == ":") colon()
        else if (c == ",") comma()
    }
    if (scalar != "") value(scalar)
}

function pad(n) { if (!(n in pads)) pads[n] = n > 0 ? pad(n - 1) "  " : ""; return pads[n] }

function string(s) {
    if (depth > 0 && kind[depth] == "{" && expect[depth] == "key") {
        key[depth] = s; expect[depth] = "colon"
        if (depth == 1) { section = substr(s, 2, length(s) - 2); know(section); buffer = "" }
        else { separate(); buffer = buffer s ": " }
    } else value(s)
}

function know(section) {
    if (!((document, section) in known)) { known[document, section] = 1; sections[document, ++many[document]] = section }
}

function colon() { if (depth > 0 && expect[depth] == "colon") expect[depth] = "value"; else broken = 1 }

function comma() {
    if (depth == 0 || expect[depth] != "comma") { broken = 1; return }
    expect[depth] = kind[depth] == "{" ? "key" : "value"
}

# Before a member or element.
function separate() {
    if (depth == 1 || (depth == 2 && listed)) return
    buffer = buffer (count[depth] > 0 ? "," : "") "\n" pad(depth)
}

function begin() {
    if (depth == 0) { if (started && document > 1) broken = 1; started = 1; return }
    if (expect[depth] != "value" && !(expect[depth] == "first" && kind[depth] == "[")) broken = 1
    if (kind[depth] == "[") {
        if (depth == 2 && listed) { buffer = pad(2); split("", member) }
        else separate()
    }
}

function done() {
    if (depth == 0) { ended = 1; return }
    count[depth]++; expect[depth] = "comma"
    if (depth == 2 && listed) keep()
    else if (depth == 1 && !waslist) other[document, section] = buffer
    if (depth == 1) waslist = 0
}

function value(s) {
    if (document == 2 && drop != "" && depth == 4 && section == "ports" && kind[4] == "[" && \
        key[3] == "\"subsystems\"" && s == "\"" drop "\"") { dropped = 1; expect[4] = "comma"; return }
    begin()
    if (depth == 0) { broken = 1; return }
    if (document == 2 && depth == 4 && listed && kind[4] == "[" && key[3] == "\"subsystems\"") \
        { holds[section, elements[2, section] + 1, s] = 1; inner[section, elements[2, section] + 1] = inner[section, elements[2, section] + 1] s "\n" }
    if (document == 2 && depth == 7 && section == "targets" && kind[7] == "{" && key[5] == "\"portals\"") portal(key[7], s)
    if (document == 2 && depth > 3 && listed && mode == "restored") note(s)
    buffer = buffer s
    if (depth == 3 && listed && kind[3] == "{") member[substr(key[3], 2, length(key[3]) - 2)] = s
    done()
}

# A member of a portal of a saved target; the address and the port come in any order.
function portal(name, s,    text, at) {
    text = s; gsub(/"/, "", text)
    if (name == "\"ip_address\"") address = text
    else if (name == "\"port\"") number = text
    if (address == "" || number == "") return
    # As the kernel has it, whatever the tool leaves out.
    if (address ~ /:/ && address !~ /^\[/) address = "[" address "]"
    at = elements[2, section] + 1
    inner[section, at] = inner[section, at] address ":" number "\n"
    address = number = ""
}

# A part of a saved subsystem, or the key of a node.
function note(s,    at, text) {
    at = elements[2, section] + 1
    text = s; gsub(/^"|"$/, "", text)
    if (section == "hosts") {
        if (depth == 4 && key[3] == "\"dhchap\"" && key[4] ~ /key"$/ && text != "" && text != "null") secret[at] = 1
        return
    }
    if (section != "subsystems") return
    if (text ~ /\\/) odd[at] = 1
    else if (depth == 4 && key[3] == "\"allowed_hosts\"" && kind[4] == "[") allowed[at] = allowed[at] text "\n"
    else if (depth == 4 && key[3] == "\"attr\"") {
        attributes[at] = attributes[at] "attr=" substr(key[4], 2, length(key[4]) - 2) "=" text "\n"
        if (key[4] == "\"allow_any_host\"" && text == "1") opened[at] = 1
    }
    else if (key[3] == "\"namespaces\"" && (depth == 5 || (depth == 6 && key[5] == "\"device\""))) {
        if (key[depth] == "\"nsid\"") spaces[at]++
        space[at, key[depth]] = text
    }
}

# The subsystems that the wanted port lists, a line for each part, if they are as nvmet.sh makes them: with one
# namespace of number 1, and one identity. `keyed` are nodes that were saved with a key, which is not printed; `other`
# are those that are saved otherwise, or not at all.
function show_subsystems(    id, list, i, n, many_of) {
    for (n = 1; n <= elements[2, "hosts"]; n++) if (n in secret) keyed[members["hosts", n, "nqn"]] = 1
    id = identity[1, "ports", 1]
    many_of = (id in place) ? split(inner["ports", place[id]], list, "\n") : 0
    for (i = 1; i < many_of; i++) listing[list[i]] = 1
    for (n = 1; n <= elements[2, "subsystems"]; n++) {
        id = members["subsystems", n, "nqn"]
        if (!(id in listing)) continue
        dealt[id] = 1
        if ((n in odd) || spaces[n] != 1 || space[n, "\"nsid\""] != "1" || space[n, "\"enable\""] != "1" || \
            space[n, "\"path\""] == "" || space[n, "\"uuid\""] != space[n, "\"nguid\""]) {
            print "other=" substr(id, 2, length(id) - 2)
            continue
        }
        printf "subsystem=%s\ndevice=%s\n", substr(id, 2, length(id) - 2), space[n, "\"path\""]
        printf "uuid=%s\n%s", space[n, "\"uuid\""], attributes[n]
        if (!(n in opened)) print "nodes=listed"
        many_of = split(allowed[n], list, "\n")
        for (i = 1; i < many_of; i++) {
            id = "\"" list[i] "\""
            printf "%s=%s\n", ((id in keyed) ? "keyed" : "node"), list[i]
        }
        print "end"
    }
    for (id in listing) if (!(id in dealt)) print "other=" substr(id, 2, length(id) - 2)
}

# What is in the saved elements that are wanted.
function show(    s, n, name, id) {
    for (s = 1; s <= many[1]; s++) {
        name = sections[1, s]
        for (n = 1; n <= elements[1, name]; n++) {
            id = identity[1, name, n]
            if (id in place) printf "%s", inner[name, place[id]]
        }
    }
}

function open(c) {
    begin()
    if (depth == 0 && c != "{") broken = 1
    if (depth == 1) { listed = (c == "["); if (listed) islist[document, section] = 1 }
    if (depth > 0 && !(depth == 1 && listed)) buffer = buffer c
    depth++; kind[depth] = c; count[depth] = 0
    expect[depth] = c == "{" ? "key" : "first"
    if (depth > 64) broken = 1
}

function close_(c) {
    if (depth == 0 || (kind[depth] == "{") != (c == "}") || expect[depth] == "colon" || \
        expect[depth] == "value" || (expect[depth] == "key" && count[depth] > 0)) { broken = 1; if (depth > 0) depth--; return }
    if (depth == 2 && listed) { depth--; waslist = 1; listed = 0; done(); return }
    if (depth > 1) buffer = buffer (count[depth] > 0 ? "\n" pad(depth - 1) : "") c
    depth--
    done()
}

# An element of a list of the top level is whole.
function keep(    n, id, name) {
    n = ++elements[document, section]
    id = kind[3] == "{" ? identify() : ""
    element[document, section, n] = buffer
    identity[document, section, n] = id
    if (document == 1) {
        if (id != "") asked[id] = 1
        absent[n, section] = ("absent" in member)
        if (id != "" && !absent[n, section]) chosen[id] = n
        lists[n, section] = ("lists" in member) ? member["lists"] : ""
        for (name in member) if (name != "absent") wanted[n, section] = wanted[n, section] "\034" name "\035" member[name]
    } else {
        if (id != "") place[id] = n
        for (name in member) members[section, n, name] = member[name]
    }
}

# What an element is known by, if it can be.
function identify(    fields, i, id) {
    if (!(section in names)) return ""
    split(names[section], fields, " "); id = section
    for (i = 1; i in fields; i++) id = id "\034" member[fields[i]]
    return id
}

# Whether a saved element is the one that must not be there: all that was said of it is so.
function matches(section, n, at,    parts, i, pair) {
    split(wanted[n, section], parts, "\034")
    for (i = 2; i in parts; i++) {
        split(parts[i], pair, "\035")
        if (members[section, at, pair[1]] != pair[2]) return 0
    }
    return 1
}

# Whether another one of its name is what is wanted.
function is_superseded(section, n,    id) {
    id = identity[1, section, n]
    return id != "" && id in chosen && chosen[id] != n
}

function compare(    s, n, name, at) {
    if (dropped) return 0
    for (s = 1; s <= many[1]; s++) {
        name = sections[1, s]
        for (n = 1; n <= elements[1, name]; n++) {
            if (is_superseded(name, n)) continue
            at = (identity[1, name, n] in place) ? place[identity[1, name, n]] : 0
            if (absent[n, name]) { if (at && matches(name, n, at)) return 0 }
            else if (!at) return 0
            else if (lists[n, name] != "") { if (mode == "same" && !((name, at, lists[n, name]) in holds)) return 0 }
            else if (mode == "same" && element[1, name, n] != element[2, name, at]) return 0
        }
    }
    return 1
}

function merge(    s, n, name, at, drop, replace, out, first, body) {
    for (s = 1; s <= many[1]; s++) {
        name = sections[1, s]
        if (!((2, name) in known)) { known[2, name] = 1; sections[2, ++many[2]] = name; islist[2, name] = 1 }
        for (n = 1; n <= elements[1, name]; n++) {
            if (lists[n, name] != "" || is_superseded(name, n)) continue
            at = (identity[1, name, n] in place) ? place[identity[1, name, n]] : 0
            if (absent[n, name]) { if (at && matches(name, n, at)) drop[name, at] = 1 }
            else if (at) element[2, name, at] = element[1, name, n]
            else element[2, name, ++elements[2, name]] = element[1, name, n]
        }
    }
    printf "{"
    for (s = 1; s <= many[2]; s++) {
        name = sections[2, s]
        printf "%s\n  \"%s\": ", (s > 1 ? "," : ""), name
        if (!((2, name) in islist)) { printf "%s", other[2, name]; continue }
        first = 1
        for (n = 1; n <= elements[2, name]; n++) {
            if ((name, n) in drop) continue
            printf "%s%s", (first ? "[\n" : ",\n"), element[2, name, n]
            first = 0
        }
        printf "%s", (first ? "[]" : "\n  ]")
    }
    printf "%s}\n", (many[2] > 0 ? "\n" : "")
}
