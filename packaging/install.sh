#!/bin/sh
# Installs Partita from this directory, or removes it.
#
# Usage: ./install.sh [--prefix DIR] [--no-system]
#        PREFIX/lib/partita/install.sh --uninstall
#   --prefix DIR   where to install [default: /usr/local for root, else ~/.local]
#   --no-system    do not start partitad, with which the programs of all users run at the same time; only root can
#   --uninstall    stops partitad and removes every installed file
set -eu
# What root installs is for all users, also on a system whose root has a strict umask.
[ "$(id -u)" != 0 ] || umask 022

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

here=$(cd "$(dirname "$0")" && pwd)
prefix=
system=true
uninstall=false
while [ $# -gt 0 ]; do
    case $1 in
        --prefix) [ $# -gt 1 ] || fail "--prefix: name a directory"; prefix=$2; shift ;;
        --prefix=*) prefix=${1#*=} ;;
        --no-system) system=false ;;
        --uninstall) uninstall=true ;;
        *) fail "$1: unknown option; use --prefix DIR, --no-system or --uninstall" ;;
    esac
    shift
done

# Whether systemd runs here and this user can change it.
has_systemd() { [ "$(id -u)" = 0 ] && [ -d /run/systemd/system ]; }

if $uninstall; then
    prefix=${prefix:-$(cd "$here/../.." && pwd)}
    list=$prefix/lib/partita/installed
    [ -r "$list" ] || fail "$list is missing, so nothing is installed in $prefix; name the prefix by --prefix"
    # First: every program of the machine would miss the library.
    if [ "$(id -u)" = 0 ] && [ -e /etc/ld.so.preload ]; then
        "$prefix/bin/partita" preload disable >/dev/null || fail "the line in /etc/ld.so.preload must go first"
    fi
    if has_systemd && [ -e "$prefix/lib/systemd/system/partitad.service" ]; then
        systemctl disable --now partitad.service || true
    fi
    "$prefix/lib/partita/stop-services" || true
    # Unless the administrator has changed it.
    if [ "$(id -u)" = 0 ] && cmp -s "$prefix/share/doc/partita/policy.toml" /etc/partita/policy.toml; then
        rm -f /etc/partita/policy.toml
        rmdir /etc/partita 2>/dev/null || true
    fi
    installed=$(cat "$list")
    # What Python has compiled.
    rm -rf "$prefix/lib/partita/python/partita/__pycache__"
    echo "$installed" | grep -v '/$' | while IFS= read -r file; do
        rm -f "$prefix/$file"
    done
    # The directories that install.sh made, unless something else is in them now; the deepest first.
    echo "$installed" | grep '/$' | sort -r | while IFS= read -r dir; do
        rmdir "$prefix/$dir" 2>/dev/null || true
    done
    if has_systemd; then systemctl daemon-reload; fi
    if [ "$(id -u)" = 0 ]; then
        echo "removed from $prefix; definitions of chains stay in /var/lib/partita, measured GPUs in /var/cache/partita"
    else
        echo "removed from $prefix"
    fi
    exit
fi

[ -r "$here/bin/partita" ] || fail "$here/bin/partita is missing; run install.sh in the unpacked archive"
case $(uname -sm) in
    'Linux @MACHINE@') ;;
    *) fail "this is $(uname -sm), and this archive is for Linux @MACHINE@: take that of this machine" ;;
esac
kernel=$(uname -r)
major=${kernel%%.*}
rest=${kernel#*.}
minor=${rest%%[!0-9]*}
if [ "$major" -lt 5 ] || { [ "$major" = 5 ] && [ "$minor" -lt 3 ]; }; then
    fail "this is Linux $kernel, and Partita needs 5.3 or later"
fi
if ! said=$("$here/bin/partita" --version 2>&1); then
    for musl in /lib/ld-musl-*; do
        [ ! -e "$musl" ] || fail "this system's C library is musl, for which NVIDIA has no driver library either; use a system or a container image with glibc 2.17 or later"
    done
    fail "bin/partita does not run here: $said; it needs glibc 2.17 or later"
fi

if [ -z "$prefix" ]; then
    if [ "$(id -u)" = 0 ]; then prefix=/usr/local; else prefix=${HOME:?}/.local; fi
fi
mkdir -p "$prefix" || fail "$prefix cannot be made; name another directory by --prefix, or run this as root"
prefix=$(cd "$prefix" && pwd)
[ -w "$prefix" ] || fail "$prefix cannot be written; name another directory by --prefix, or run this as root"

# Makes a directory below the prefix; the list of what is installed names those that were not there.
make_dir() {
    [ ! -d "$prefix/$1" ] || return 0
    case $1 in */*) make_dir "${1%/*}" ;; esac
    mkdir "$prefix/$1"
    made="$made$1/
"
}

list=$prefix/lib/partita/installed
made=
[ ! -e "$list" ] || made=$(grep '/$' "$list")
[ -z "$made" ] || made="$made
"
make_dir lib/partita
(cd "$here" && find bin include lib share -type f; echo lib/partita/install.sh; echo lib/partita/installed) >"$list.new"
while IFS= read -r file; do
    from=$here/$file
    case $file in
        lib/partita/install.sh) from=$here/install.sh ;;
        lib/partita/installed) continue ;;
    esac
    make_dir "${file%/*}"
    # Under another name first: programs that run keep the file that they have.
    cp -p "$from" "$prefix/$file.new"
    case $file in
        lib/systemd/*) sed "s|@PREFIX@|$prefix|g" "$from" >"$prefix/$file.new" ;;
    esac
    mv -f "$prefix/$file.new" "$prefix/$file"
done <"$list.new"
# What an older version had and this one has not.
if [ -e "$list" ]; then
    while IFS= read -r file; do
        case $file in */) continue ;; esac
        grep -qxF "$file" "$list.new" || rm -f "$prefix/$file"
    done <"$list"
fi
printf %s "$made" >>"$list.new"
mv -f "$list.new" "$list"

echo "$said in $prefix; remove it with $prefix/lib/partita/install.sh --uninstall"
case :$PATH: in
    *:"$prefix/bin":*) ;;
    *) echo "note: $prefix/bin is not in PATH" ;;
esac
if [ ! -e /proc/driver/nvidia/version ]; then
    echo "note: no NVIDIA driver here, so partita uses a simulated GPU; try \`partita demo\`"
elif ! command -v nvidia-cuda-mps-control >/dev/null; then
    echo "note: nvidia-cuda-mps-control is missing, without which tenants take turns; it is a part of NVIDIA's driver packages"
fi
if $system && [ "$(id -u)" = 0 ] && [ ! -e /etc/partita/policy.toml ]; then
    mkdir -p /etc/partita
    cp "$prefix/share/doc/partita/policy.toml" /etc/partita/policy.toml
    chmod 644 /etc/partita/policy.toml
fi
if $system && has_systemd; then
    systemctl daemon-reload
    systemctl enable --quiet partitad.service
    systemctl restart partitad.service
    echo "partitad runs in system mode: programs of all users run at the same time (--no-system leaves it out)"
fi
