# shellcheck shell=bash
# What every script here shares: where things are, how to speak, and the ledger of parts.
# Sourced, never run. A *part* is one thing that can pass, fail, or be unable to run; the ledger is
# where they are counted, so that a part that never ran cannot look like one that passed.

set -euo pipefail

OMNIBUS_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$OMNIBUS_ROOT"

# shellcheck disable=SC2034  # for the scripts that source this file
OMNIBUS_CACHE=${OMNIBUS_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/omnibus-csi}
OMNIBUS_TARGET=${CARGO_TARGET_DIR:-$OMNIBUS_ROOT/target}
OMNIBUS_LOGS=$OMNIBUS_TARGET/omnibus/logs
mkdir -p "$OMNIBUS_LOGS"

say() { printf '%s\n' "$*" >&2; }

loud() {
    printf '\n!! %s\n\n' "$*" >&2
}

die() {
    loud "$*"
    exit 1
}

# Prints the head of the script and ends it, where its first word asks for help.
help_if_asked() { # the words of the script
    case ${1:-} in
        -h | --help)
            awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$OMNIBUS_ROOT/scripts/${0##*/}"
            exit
            ;;
    esac
}

everything_required() { [ "${OMNIBUS_REQUIRE_ALL:-}" = 1 ]; }

is_root() { [ "$(id -u)" = 0 ]; }

# Reads the lists of packages, after another apt at the most five minutes long. `apt-get update` itself does not wait,
# whatever DPkg::Lock::Timeout says: that is for installing.
apt_update() {
    local said tries=30
    until said=$(LC_ALL=C apt-get -q update 2>&1); do
        case $said in *'Could not get lock'*) tries=$((tries - 1)) ;; *) tries=0 ;; esac
        if [ $tries = 0 ]; then
            printf '%s\n' "$said" >&2
            return 1
        fi
        sleep 10
    done
}

is_debian() { command -v apt-get >/dev/null 2>&1 && [ -e /etc/debian_version ]; }

# The ledger: one line a part, fields split by tabs: state, name, seconds, passed, failed, detail.
# A script that calls others opens it first, so that all their parts stand in one account.
open_ledger() {
    [ -z "${OMNIBUS_LEDGER:-}" ] || return 0
    OMNIBUS_LEDGER=$(mktemp "${TMPDIR:-/tmp}/omnibus-ledger.XXXXXX")
    export OMNIBUS_LEDGER
    trap 'rm -f "$OMNIBUS_LEDGER"' EXIT
}

enter() { # state name seconds passed failed detail
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$@" >>"$OMNIBUS_LEDGER"
}

# The number of lines that cargo test's own account has, e.g. `sum_of passed log`.
sum_of() {
    sed -n 's/^test result: .*[^0-9]\([0-9][0-9]*\) '"$1"'.*/\1/p' "$2" | awk '{ n += $1 } END { print n + 0 }'
}

# The tests that were ignored, without those of `*_in_the_lab`, which are for another machine, and those that say
# that they are a cell of `make test-all` or a part of `make test-real`.
ignored_here() { # log
    awk '/^ *(Running|Doc-tests) / { lab = /_in_the_lab/ }
        /^test .* \.\.\. ignored/ && !lab && !/: (a cell of `make test-all`|a part of `make test-real`)$/ { n++ }
        END { print n + 0 }' "$1"
}

# The first tests that failed by cargo test's own account, each with the first line of why, and programs that were ended.
failed_tests() { # log
    awk '/^!! .* was ended after / { printf "; %s", substr($0, 4) }
        /^---- .* stdout ----$/ { name = $2; next }
        name && /panicked at / { getline why; if (n++ < 3) printf "; %s: %s", name, substr(why, 1, 200); name = "" }' "$1"
}

# Runs one part: `part "name" command...`. Its output goes to the terminal and to a log.
part() {
    local name=$1 log began status passed=0 failed=0 ignored detail
    shift
    time_for 0 "$name" || return 0
    log=$OMNIBUS_LOGS/$(printf '%s' "$name" | tr -cs 'A-Za-z0-9' '-').log
    say ""
    say "== $name"
    began=$SECONDS
    # Not `... || status=$?`: that would switch `set -e` off in everything called.
    set +e
    (
        set -e
        "$@"
    ) </dev/null 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    set -e
    if grep -q '^test result: ' "$log"; then
        passed=$(sum_of passed "$log")
        failed=$(sum_of failed "$log")
        ignored=$(ignored_here "$log")
        detail="$passed tests passed, $failed failed, $ignored ignored$(failed_tests "$log" | tr '\t' ' ')"
        if everything_required; then failed=$((failed + ignored)); fi
        # A build that broke or a runner that died left no failed test to count.
        if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then failed=1; fi
    elif [ "$status" -eq 0 ]; then
        passed=1
        detail=$(sed -n 's/^omnibus: //p' "$log" | tail -n 1)
    else
        failed=1
        detail="exit status $status, see $log"
    fi
    if [ "$failed" -eq 0 ]; then
        enter passed "$name" $((SECONDS - began)) "$passed" 0 "$detail"
    else
        enter FAILED "$name" $((SECONDS - began)) "$passed" "$failed" "$detail"
    fi
}

# Begins the account of tests that cannot do their work here, and ends it: each becomes a part that did not run.
collect_reports() {
    export OMNIBUS_COULD_NOT_RUN=$OMNIBUS_LOGS/could-not-run.txt
    : >"$OMNIBUS_COULD_NOT_RUN"
}
enter_reports() {
    local what why
    while IFS=$'\t' read -r what why; do
        [ -z "$what" ] || could_not_run "$what" "${why:-it does not say why}"
    done < <(sort -u "$OMNIBUS_COULD_NOT_RUN")
}

# A part that could not run here: said aloud, and a failure where everything is required.
could_not_run() { # name why
    loud "COULD NOT RUN: $1: $2"
    if everything_required; then
        enter FAILED "$1" 0 0 1 "could not run, and everything is required: $2"
    else
        enter "not run" "$1" 0 0 0 "$2"
    fi
}

# A part that was asked to run elsewhere, lacks only what this project does not own, such as a
# third party's data, or has no time left; never a failure, never silent.
left_out() { # name why
    loud "LEFT OUT: $1: $2"
    enter "left out" "$1" 0 0 0 "$2"
}

# Seconds that are left of a run that may last only so long (`.ci/run`), as OMNIBUS_UNTIL says in seconds since 1970;
# never less than one.
seconds_left() {
    local left=1000000
    [ -z "${OMNIBUS_UNTIL:-}" ] || left=$((OMNIBUS_UNTIL - $(date +%s)))
    printf '%s\n' "$((left > 1 ? left : 1))"
}

# Whether a part that takes so many minutes can begin; if not, it is left out, and that is said.
time_for() { # minutes name
    [ "$(seconds_left)" -le $(($1 * 60 + 1)) ] || return 0
    if [ "$1" -eq 0 ]; then
        left_out "$2" "this run has no time left"
    else
        left_out "$2" "it may take $1 minutes, and this run has fewer left"
    fi
    return 1
}

# Prints the table, what failed once more, and the counts on the last line; fails if a part failed, or if none ran.
summary() { # title
    awk -F '\t' -v title="$1" '
        BEGIN { printf "\n%s\n%-44s %-9s %8s  %s\n", title, "part", "result", "seconds", "detail" }
        {
            printf "%-44s %-9s %8d  %s\n", $2, $1, $3, $6
            passed += $4; failed += $5
            if ($1 == "FAILED") again = again "FAILED: " $2 ": " $6 "\n"
            if ($1 == "not run" || $1 == "left out") missing++
        }
        END {
            if (NR == 0) { print "nothing ran"; failed = 1 }
            if (missing) printf "\n%d part(s) did not run: see above. This is not a full pass.\n", missing
            if (again) printf "\n%s", again
            printf "\n%d passed, %d failed\n", passed, failed
            exit failed > 0
        }' "$OMNIBUS_LEDGER"
}
