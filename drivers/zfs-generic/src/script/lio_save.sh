# Saves what was changed of LIO for the next start of the host, of all volumes of which that waits.
#
# lio_save.sh SAVED LOCK, as lio.sh takes them.
mode=save save=$1 lock=$2
share_lio
save_waiting
exit 0
