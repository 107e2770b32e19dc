# Destroys a snapshot by one process, a channel program: if it has a property of its own, has not another one, and
# was not deleted before. Only root may run one. Whatever is otherwise, or in use, or refused, is said by nothing
# being done.
#
# ZFS... program -j POOL - SNAPSHOT PROPERTY WITHOUT
answer=$(
    "$@" 2>/dev/null <<'PROGRAM'
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
) || {
    echo refused
    return 0
}
case $answer in
*'"done"'*) echo 'done' ;;
esac
