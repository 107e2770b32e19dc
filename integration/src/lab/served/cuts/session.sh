#!/bin/sh
# Run by the storage host for a login with the key of a test: the requested command, with the commands
# that stop first in the PATH.
OMNIBUS_SESSION=$PPID
while read -r key value <"/proc/$OMNIBUS_SESSION/comm" && case $key in sshd*) false ;; esac; do
    while read -r key value; do
        [ "$key" != PPid: ] || break
    done <"/proc/$OMNIBUS_SESSION/status"
    OMNIBUS_SESSION=$value
done
PATH=${0%/*}/bin:$PATH
export OMNIBUS_SESSION PATH
# Words, not one word: it is `sh -s`.
# shellcheck disable=SC2086
exec $SSH_ORIGINAL_COMMAND
