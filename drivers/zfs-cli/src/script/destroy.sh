# Destroys a snapshot by one process, a channel program: if it has a property of its own, has not another one, and
# was not deleted before. Only root may run one. Prints `done`, or `other` where something is otherwise or in use and
# nothing was done. Without one of these answers it fails: the kernel may have destroyed the snapshot.
#
# ZFS... program -j POOL - SNAPSHOT PROPERTY WITHOUT
answer=$(
    "$@" <<'PROGRAM'
args = ...
argv = args["argv"]
name = argv[1]
if not zfs.exists(name) then return "other" end
value, source = zfs.get_prop(name, argv[2])
if source ~= name and source ~= "received" then return "other" end
value, source = zfs.get_prop(name, argv[3])
if source == name or source == "received" then return "other" end
if zfs.get_prop(name, "defer_destroy") ~= "off" then return "other" end
if zfs.sync.destroy(name) ~= 0 then return "other" end
return "done"
PROGRAM
) || return $?
case $answer in
*'"done"'*) echo 'done' ;;
*'"other"'*) echo other ;;
*)
    echo 'zfs does not print the answer of the channel program' >&2
    return 1
    ;;
esac
