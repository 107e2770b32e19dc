#!/bin/sh
count=$1; shift
: & first=$!
"$@"; code=$?
: & echo $(($! - first - 1)) >>"$count"
exit $code
