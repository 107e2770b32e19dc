#!/bin/sh
show() {
for p in "type $2" "guid 7" "createtxg 3" "creation 1" "mounted yes" "used 5"; do
printf '%s\t%s\t%s\t-\n' "$1" "${p% *}" "${p#* }"
done
}
