if [ -d /sys/module ] && read -r release 2>/dev/null </proc/sys/kernel/osrelease; then printf 'Linux %s\n' "$release"
else uname -sr; fi
