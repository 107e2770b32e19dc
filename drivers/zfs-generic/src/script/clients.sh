# Who uses the share of a dataset: clients of the NFS server of Linux that hold something in it open, or connections of
# samba.
#
# clients.sh PROTOCOL DATASET NAME. `connected` is said of each of them, `unseen` of a host that cannot say it, and
# `hidden` of one that could and did not. It is the body of a function.
protocol=$1 dataset=$2 name=$3

# Linux 5.3 and newer, for root alone.
clients=/proc/fs/nfsd/clients
mounts=/proc/self/mountinfo

newline='
'

# The numbers of the filesystem, and of its snapshots that are mounted, as nfsd writes them.
numbers() {
    dataset=$dataset LC_ALL=C awk '
        BEGIN { dataset = ENVIRON["dataset"]; gsub(/ /, "\\040", dataset) }
        {
            for (i = 7; i < NF && $i != "-"; i++) continue
            of = $(i + 2)
            sub(/@.*/, "", of)
            if ($(i + 1) == "zfs" && of "" == dataset "") {
                split($3, number, ":")
                printf "%02x:%02x\n", number[1], number[2]
            }
        }' "$mounts" 2>/dev/null
}

# The client of a folder of nfsd, by what it calls itself and its address. One that goes at this moment has neither.
tell_client() {
    info=$(cat "$1/info" 2>/dev/null)
    address='?' client='' status='' silent='?'
    while [ -n "$info" ]; do
        line=${info%%"$newline"*}
        info=${info#"$line"}
        info=${info#"$newline"}
        case $line in
        'address: "'*'"') address=${line#*\"} ;;
        'name: "'*'"') client=${line#*\"} ;;
        'status: '*) status=${line#* } ;;
        'seconds from last renew: '*) silent=${line##* } ;;
        esac
    done
    address=${address%\"} client=${client%\"}
    case $address in
    '['*) address=${address#?} address=${address%%]*} ;;
    *) address=${address%:*} ;;
    esac
    case $address in '' | *[!A-Za-z0-9.:%_-]*) address='?' ;; esac
    # It is whatever the client has sent.
    case $client in *[!A-Za-z0-9" "./:@_-]*) client= ;; esac
    # It has lost its lease: nfsd keeps what it holds until another client wants it, for a day at most.
    case $status in
    courtesy | expirable) silent=" (silent for $silent s)" ;;
    *) silent= ;;
    esac
    printf 'connected %s%s%s\n' "${client:+$client at }" "$address" "$silent"
}

nfs_clients() {
    if [ ! -d "$clients" ]; then
        echo "unseen the kernel has no $clients"
        return 0
    fi
    if [ ! -r "$clients" ] || [ ! -x "$clients" ]; then
        echo "unseen the login may not read $clients"
        return 0
    fi
    set -- "$clients"/*/states
    [ "$1" != "$clients/*/states" ] || return 0
    found=$(numbers) || {
        echo "hidden the filesystems, in $mounts"
        return 0
    }
    pattern=
    for number in $found; do
        pattern=$pattern${pattern:+|}$number
    done
    # What is mounted nowhere is served to none.
    [ -n "$pattern" ] || return 0
    # The first quotation mark of a line: names of files come after it. One may break the line: hence all digits.
    pattern="^- 0x[0-9a-f]{32}: [{] type: [a-z]+, [^\"]*superblock: \"($pattern):"
    tries=0
    while :; do
        set -- "$clients"/*/states
        [ "$1" != "$clients/*/states" ] || return 0
        holders=$(LC_ALL=C grep -slE -e "$pattern" "$@")
        [ $? -gt 1 ] || break
        # A client that goes at this moment cannot be read.
        tries=$((tries + 1))
        if [ $tries = 3 ]; then
            echo "hidden what clients hold open, in $clients"
            break
        fi
    done
    for holder in $holders; do
        tell_client "${holder%/states}"
    done
}

# The machines that are connected to the share, by the table of smbstatus, which every version has. Fails unless it is
# whole.
smb_clients() {
    { smbstatus --shares 2>/dev/null && echo .; } | share=$name LC_ALL=C awk '
        BEGIN { share = tolower(ENVIRON["share"]) }
        $1 == "Service" && $3 == "Machine" { table = 1; next }
        table && NF > 3 && tolower($1) == share { print "connected " ($3 ~ /[^A-Za-z0-9.:%_-]/ ? "?" : $3) }
        table && $0 == "." { whole = 1 }
        END { exit !whole }'
}

case $protocol in
nfs) nfs_clients ;;
smb)
    smb_clients || echo 'unseen smbstatus does not say it: it is not there, or not for this login'
    ;;
esac
return 0
