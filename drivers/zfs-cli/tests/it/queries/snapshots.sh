#!/bin/sh
awk 'BEGIN {
    split("type guid createtxg clones userrefs democratic-csi:csi_snapshot_name creation used", p, " ")
    for (s = 0; s <= 20000; s++) for (i = 1; i <= 8; i++) {
    v = i == 1 ? (s ? "snapshot" : "filesystem") : i == 4 ? "" : i == 6 ? "-" : s + 1
    print "tank/v/a" (s ? "@auto-" s : "") "	" p[i] "	" v "	-" } }'
