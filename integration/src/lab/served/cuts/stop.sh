#!/bin/sh
# Stands before a command of the storage host, under its name. It counts the calls of all of them, and at
# the one that is `armed` it kills the program or cuts the connection over which it was called.
folder=${0%/bin/*} name=${0##*/}
# Where the real ones are.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
session=${OMNIBUS_SESSION:-none}
# The folder of locks is made by each script, and is no step of any.
case "$name $1" in 'mkdir -p') exec "$name" "$@" ;; esac

words="$name $*"
# A line for each call.
case $words in
*'
'*) words="$name ..." ;;
esac
at='' how='' server=''
exec 9>>"$folder/lock"
flock 9
read -r number <"$folder/count"
number=$((number + 1))
echo $number >"$folder/count"
echo "$session" >"$folder/last"
printf '%s\n' "$words" >>"$folder/calls"
if [ -e "$folder/armed" ]; then read -r at how server <"$folder/armed"; fi
if [ "$at" != $number ]; then
    exec 9>&-
    exec "$name" "$@"
fi
rm "$folder/armed"

# Those that called this, up to who took the connection, or to the program itself.
family='' process=$PPID end=$OMNIBUS_SESSION
[ -n "$end" ] || end=$server
while [ "$process" != "$end" ] && [ "$process" -gt 1 ]; do
    family="$family $process"
    while read -r key value; do
        [ "$key" != PPid: ] || break
    done <"/proc/$process/status"
    process=$value
done
echo "$$ $family" >"$folder/orphan"
exec 9>&-

has_started() {
    read -r last <"$folder/last"
    read -r now <"$folder/count"
    if [ "$session" = none ]; then [ "$now" != $number ]; else [ "$last" != "$session" ]; fi
}

case $how in
killed)
    kill -9 "$server"
    # The rest continues when the retry has started: over its own connection, if there are any.
    tries=0
    until has_started || [ $tries -ge 200 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    exec "$name" "$@"
    ;;
before)
    # Several numbers: they are meant to be words.
    # shellcheck disable=SC2086
    kill -9 "$OMNIBUS_SESSION" $family
    exit 137
    ;;
during)
    "$name" "$@" <&0 &
    kill -9 "$OMNIBUS_SESSION"
    wait $!
    exit
    ;;
after)
    "$name" "$@"
    code=$?
    kill -9 "$OMNIBUS_SESSION"
    exit $code
    ;;
esac
