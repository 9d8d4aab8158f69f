#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Stands in for Alpine's apk, and exists in this fixture only: busybox fetches, checks and unpacks for it.
# An index says the SHA-256 of each package, which stands in for the signature that the real one checks.
set -eu

db=/lib/apk/db
arch=$(cat /etc/apk/arch)
work=/tmp/apk.$$

fail() {
    echo "ERROR: $*" >&2
    exit 1
}

get() {
    wget -q -O "$2" "$1" || fail "$1: could not be fetched"
}

read_index() {
    : >"$work/index"
    while read -r repository; do
        get "$repository/$arch/APKINDEX.tar.gz" "$work/APKINDEX.tar.gz"
        tar -xzO -f "$work/APKINDEX.tar.gz" APKINDEX >"$work/APKINDEX" || fail "$repository: BAD archive"
        awk -v from="$repository" '
            /^C:/ { digest = substr($0, 3) }
            /^P:/ { name = substr($0, 3) }
            /^V:/ { version = substr($0, 3) }
            /^D:/ { needs = substr($0, 3) }
            /^$/ { if (name) print name, version, digest, from, needs; name = version = digest = needs = "" }
        ' "$work/APKINDEX" >>"$work/index"
    done </etc/apk/repositories
}

add() {
    grep -q "^P:$1\$" $db/installed && return
    # shellcheck disable=SC2046 # the words of the line
    set -- "$1" $(grep "^$1 " "$work/index" | head -n 1)
    [ $# -ge 5 ] || fail "unable to select packages: $1 (no such package)"
    local name="$2" version="$3" digest="$4" from="$5"
    shift 5
    for needed in "$@"; do add "$needed"; done
    get "$from/$arch/$name-$version.apk" "$work/$name.apk"
    echo "$digest  $work/$name.apk" | sha256sum -c -s || fail "$name-$version: UNTRUSTED signature"
    count=$((count + 1))
    printf '(%2d/%d) Installing %s (%s)\n' "$count" "$wanted" "$name" "$version"
    mkdir -p "$work/$name"
    tar -xz -C "$work/$name" -f "$work/$name.apk" .PKGINFO .post-install data.tar.gz
    # As uid 0 it gives every file to 0:0, really
    tar -xz -C / -f "$work/$name/data.tar.gz" || fail "$name-$version: can't be unpacked"
    printf 'C:%s\nP:%s\nV:%s\nA:%s\n\n' "$digest" "$name" "$version" "$arch" >>$db/installed
    sh "$work/$name/.post-install" || fail "$name-$version.post-install: script exited with error $?"
}

command=${1:-}
case "$command" in
info)
    [ "${2:-}" = -v ] || fail "only info -v"
    awk '/^P:/ { name = substr($0, 3) } /^V:/ { print name "-" substr($0, 3) }' $db/installed
    ;;
add)
    [ "${2:-} ${3:-}" = "--no-cache --" ] || fail "only add --no-cache --"
    shift 3
    mkdir "$work"
    read_index
    count=0 wanted=$#
    for package in "$@"; do add "$package"; done
    echo "OK: $# packages"
    ;;
*) fail "'$command' is not an apk command" ;;
esac
