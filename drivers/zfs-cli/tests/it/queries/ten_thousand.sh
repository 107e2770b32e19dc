#!/bin/sh
case "$*" in
"get -Hp -d 1 -t filesystem "*)
awk 'BEGIN { for (i = 10000; i > 0; i--) {
n = "tank/v/v" i; t = "1844674407370" sprintf("%07d", i % 5000)
print n "\ttype\tfilesystem\t-"
print n "\tguid\t9000000000000" sprintf("%06d", i) "\t-"; print n "\tcreatetxg\t" t "\t-"
print n "\tdemocratic-csi:csi_share_volume_context\t{}\t" (i % 10 ? "local" : "inherited from tank")
} }' ;;
*) echo "unexpected: $*" >&2; exit 2 ;;
esac
