# How a pool is, in one word. What asks a suspended one for more waits for ever, so the exchange ends here, unless nothing
# more is asked. On Linux every login may ask, and finds zpool where its PATH does not lead; where it may not ask, sudo is
# tried.
#
# POOL ALONE SUDO ZPOOL. It is the body of a function.
pool=$1 alone=$2 sudo=$3 zpool=$4
for folder in '' /usr/sbin/ /sbin/ /usr/local/sbin/; do
    it=$("$folder$zpool" list -H -o health "$pool" 2>&1)
    code=$?
    [ $code -eq 127 ] || break
    case $zpool in */*) break ;; esac
done
if [ $code -ne 0 ]; then
    said=$it
    if [ -O / ] || ! it=$("$sudo" -n -- "$zpool" list -H -o health "$pool" 2>&1); then
        printf '%s\n' "$said" >&2
        case $said in
        *'no such pool'*) echo 'its pool is not imported' >&2 ;;
        *) echo 'zpool does not tell how the pool is' >&2 ;;
        esac
        return 4
    fi
fi
# A program that warns has its answer on the last line.
it=${it##*
}
if [ "$it" = SUSPENDED ] && [ "$alone" != yes ]; then
    echo "cannot open '$pool': pool I/O is currently suspended" >&2
    return 4
fi
printf '%s\n' "$it"
