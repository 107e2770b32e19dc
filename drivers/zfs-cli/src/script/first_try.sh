# Runs a command if what the look right before it has printed is as expected, and says that it did: what the command
# prints is dropped, so that this is the whole output. The first row of a property is the right one: those of ZFS
# stand before what a user wrote.
#
# [OBJECT PROPERTY TEST OPERAND]... -- COMMAND...
line='
'
tab='	'
while [ "$1" != -- ]; do
    it=$line$omnibus_seen
    case $it in
    *"$line$1$tab$2$tab"*) ;;
    *) return 0 ;;
    esac
    it=${it#*"$line$1$tab$2$tab"}
    it=${it%%"$line"*}
    value=${it%"$tab"*} source=${it##*"$tab"}
    case $3 in
    is) [ "$value" = "$4" ] || return 0 ;;
    own)
        case $source in
        local | received) ;;
        *) return 0 ;;
        esac
        ;;
    *)
        case $value in
        '' | *[!0-9]* | 0*) return 0 ;;
        esac
        case $3 in
        below) [ "$value" -lt "$4" ] || return 0 ;;
        divides) [ $(($4 % value)) -eq 0 ] || return 0 ;;
        esac
        ;;
    esac
    shift 4
done
shift
"$@" >/dev/null || return $?
echo 'done'
