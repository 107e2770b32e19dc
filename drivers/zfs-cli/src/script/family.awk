BEGIN { name = ENVIRON["name"] ""; n = length(name) }
NF > 2 && substr($1, 1, n) "" == name {
next_one = substr($1, n + 1, 1)
if (next_one == "") keep = 1
else if (next_one == "@" || next_one == "/") keep = index(ENVIRON["wanted"], "," $2 ",")
}
keep
