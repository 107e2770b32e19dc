# Whether the login can run zdb as root: prints `yes`, or why not. An option that zdb does not have makes it say how it
# is used, and look at no pool.
#
# SUDO
sudo=$1
line='
'
if [ -O / ]; then said=$(zdb '-?' 2>&1); else said=$("$sudo" -n -- zdb '-?' 2>&1); fi
case $said in
*Usage:*zdb*) echo yes ;;
*) printf '%s\n' "${said##*"$line"}" ;;
esac
