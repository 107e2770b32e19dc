printf '%s\n' "$said" >&2
case $said in
*'does not exist'* | *'no such pool'*) echo 'its pool is not imported' >&2 ;;
*) echo 'its pool cannot be looked at' >&2 ;;
esac
