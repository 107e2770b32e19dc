for name; do :; done
second=; { read -r second </proc/net/rpc/nfsd.export/flush; } 2>/dev/null
case $second in '' | *[!0-9]*) second=0 ;; *) second=$((second + 1 - $(date +%s))) ;; esac
if [ $second -gt 0 ] && dataset=$name awk '
BEGIN { dataset = ENVIRON["dataset"]; gsub(/ /, "\\040", dataset) }
FNR == NR { if ($1 == dataset && $3 == "zfs") mounted[$2]; next }
{ sub(/^# */, "") } $1 in mounted { kept = 1 }
END { exit !kept }' /proc/self/mounts /proc/net/rpc/nfsd.export/content 2>/dev/null; then
printf 'cannot unmount %s: nfsd keeps it for %s s\n' "$name" $second >&2; return 1
fi
