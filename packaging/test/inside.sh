#!/bin/sh
# What packaging/test/run runs in a clean root: installs one package, uses it, and removes it.
#
# Usage: inside.sh deb|tarball|wheel|rpm
set -eu

fail() {
    echo "FAILED: $*" >&2
    for log in /tmp/*.log; do
        [ -s "$log" ] && tail -n 12 "$log" | sed "s|^|$log: |" >&2
    done
    ! booted || journalctl --unit partitad --no-pager --output cat --lines 30 >&2
    exit 1
}

# Waits until a command succeeds.
until_true() {
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "this does not become true: $*"
        sleep 0.1
    done
}

files() {
    find / -xdev \( -path /proc -o -path /dev -o -path /run -o -path /tmp -o -path /given -o -path /var/lib/dpkg \
        -o -path /var/log -o -path /var/cache/ldconfig -o -path /var/cache/debconf \) -prune -o -print | sort
}

# Everything but the system mode: programs, pages, completions, the demo.
use() {
    partita --version
    [ "$(partita version)" = "$(partita --version)" ] || fail 'partita version'
    partita help run | grep -q -- --isolation || fail 'partita help run'
    partita help chain start | grep -q 'Usage: partita' || fail 'partita help chain start'
    partitad --version >/dev/null
    (cd /tmp && partita demo --gpu sim:h200 --svg /tmp/demo.svg | sed -n 1,4p)
    [ -s /tmp/demo.svg ] || fail 'the demo drew nothing'
}

pages() { # prefix
    for page in partita partita-run partita-chain partitad; do
        [ -s "$1/share/man/man1/$page.1.gz" ] || fail "no manual page of $page"
    done
    bash -n "$1/share/bash-completion/completions/partita"
}

# Whether this root is booted, by systemd.
booted() { [ -d /run/systemd/system ]; }

start_daemon() { # unit
    if booted; then
        systemctl restart partitad
        return
    fi
    # What systemd makes before it starts the unit.
    mkdir -p -m 755 /run/partita /var/cache/partita
    mkdir -p -m 700 /var/lib/partita
    # shellcheck disable=SC2046 # its words
    set -- $(sed -n 's/^ExecStart=//p' "$1")
    rm -f /run/partita/.system.sock
    "$@" 2>>/tmp/partitad.log &
    daemon=$!
    until_true test -S /run/partita/.system.sock
}

stop_daemon() {
    if booted; then
        systemctl stop partitad
        return
    fi
    kill "$daemon"
    wait "$daemon" || true
}

# Sets a variable of the daemon: in its file for systemd, else in this script's environment.
set_variable() { # name, value
    export "$1=$2"
    ! booted || echo "$1=$2" >>/etc/default/partitad
}

main_pid() { systemctl show --property MainPID --value partitad; }

# Whether the service runs, as another process than before.
is_another() { # process
    [ "$(main_pid)" != "$1" ] && [ "$(main_pid)" != 0 ] && systemctl --quiet is-active partitad && test -S /run/partita/.system.sock
}

# What only an init system does to the service. Tenants run on through all of it.
under_systemd() { # tenant, SMs
    systemd-analyze verify partitad.service 2>/tmp/verify.log || fail 'systemd finds mistakes in the unit'
    ! grep partitad /tmp/verify.log || fail 'systemd finds mistakes in the unit'
    systemctl --quiet is-enabled partitad || fail 'the service does not start with the machine'

    # It is killed.
    pid=$(main_pid)
    kill -KILL "$pid"
    until_true is_another "$pid"
    goes_on "$1" "$2"

    # It hangs: the watchdog ends it.
    mkdir -p /run/systemd/system/partitad.service.d
    printf '[Service]\nWatchdogSec=2\nTimeoutAbortSec=1\n' >/run/systemd/system/partitad.service.d/test.conf
    systemctl daemon-reload
    systemctl restart partitad
    pid=$(main_pid)
    kill -STOP "$pid"
    until_true is_another "$pid"
    goes_on "$1" "$2"
    rm -r /run/systemd/system/partitad.service.d
    systemctl daemon-reload

    # It stops, and starts again.
    systemctl stop partitad
    goes_on "$1" "$2"
    systemctl start partitad
    as alice partita set "$1" --sm "$2sm" >/dev/null || fail 'the service does not take its tenants over'

    # It reads its policy again when it is asked to, and says in its log what is wrong in it.
    printf '[[rule]]\nsm_most = "50%%"\n' >/etc/partita/policy.toml
    systemctl reload partitad
    until_true logged 'sm_most'
    cp /usr/share/doc/partita/policy.toml /etc/partita/policy.toml
    systemctl reload partitad
    goes_on "$1" "$2"
    echo "under systemd $(systemctl --version | sed -n '1s/systemd \([0-9]*\).*/\1/p'), killed, hung, stopped and reloaded: its tenants run on"
}

logged() { journalctl --unit partitad | grep -q "$1"; }

as() { # user, command
    user=$1
    shift
    runuser -u "$user" -- "$@"
}

tenant() { # user, name, options
    user=$1 name=$2
    shift 2
    as "$user" partita run --name "$name" "$@" -- /given/places >"/tmp/$name.log" 2>&1 &
    until_true lines "$name" 3
}

# Whether a tenant has completed so many launches.
lines() { [ "$(grep -c 'SMs$' "/tmp/$1.log")" -ge "$2" ]; }

# Whether a tenant has completed launches on this many SMs since now.
goes_on() { # name, SMs
    from=$(grep -c 'SMs$' "/tmp/$1.log")
    until_true lines "$1" $((from + 5))
    [ "$(tail -n 2 "/tmp/$1.log" | sort -u)" = "$2 SMs" ] || fail "$1 runs on $(tail -n 1 "/tmp/$1.log"), not on $2 SMs"
}

# Two users on one GPU at the same time, after the installation and nothing else.
together() { # unit
    # The GPU of this machine: a simulated one, which every user can open.
    mkdir /tmp/gpu
    chmod 1777 /tmp/gpu
    set_variable PARTITA_GPU sim:h200
    set_variable PARTITA_SIM_DIR /tmp/gpu
    start_daemon "$1"
    tenant alice first --sm 50% --mem 20GiB
    tenant bob second --sm 50% --mem 20GiB
    goes_on first 66
    goes_on second 66
    goes_on first 66
    as bob partita ps >/tmp/ps.log
    grep -q '^first ' /tmp/ps.log && grep -q '^second ' /tmp/ps.log || fail 'bob does not see both tenants'
    [ "$(awk '$1 == "first" { print $14 }' /tmp/ps.log)" = '?' ] || fail "bob cannot know how many processes alice's tenant has"
    grep -q '^system mode: ' /tmp/ps.log || fail 'ps does not say which mode holds'
    cat /tmp/ps.log
    partita mps clients >/tmp/clients.log
    [ "$(grep -c places /tmp/clients.log)" = 2 ] || fail 'they are not clients of one service'
    as bob partita set first --sm 25% 2>/tmp/refused.log && fail "bob changes alice's tenant"
    as alice partita set first --sm 24sm >/dev/null
    goes_on first 24
}

ended() { ! kill -0 "$1" 2>/dev/null; }

case $1 in
    deb | tarball)
        useradd --create-home alice
        useradd --create-home bob
        groupadd --force vision
        usermod --append --groups vision alice
        ;;
esac
# Written by the first use of these programs.
ldconfig
files >/tmp/before
began=$(date +%s)

case $1 in
    deb)
        dpkg -i /given/older >/tmp/dpkg.log 2>&1
        dpkg -r partita >/tmp/dpkg.log 2>&1
        dpkg -P partita >/tmp/dpkg.log 2>&1
        began=$(date +%s)
        dpkg -i /given/older >/tmp/dpkg.log 2>&1
        use
        echo "from nothing to the end of the demo: $(($(date +%s) - began)) s"
        pages /usr
        unit=/usr/lib/systemd/system/partitad.service
        together $unit

        # A package over an older one: tenants run on, with their limits.
        pid=$(partita ps --json | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -1)
        dpkg -i /given/partita_*.deb >/tmp/dpkg.log 2>&1
        goes_on first 24
        # The package restarts the daemon alone, if there is systemd.
        booted || stop_daemon
        goes_on second 66
        booted || start_daemon $unit
        goes_on first 24
        goes_on second 66
        [ -n "$pid" ] && kill -0 "$pid" || fail 'the upgrade ended a tenant'
        as alice partita set first --sm 50% >/dev/null
        goes_on first 66
        ! booted || under_systemd first 66
        as bob partita kill second
        tenant bob third --sm 40%
        goes_on third 52

        # The policy: as installed it changes nothing, a change holds at once, and a mistake leaves the old one.
        partita policy check
        printf '[[rule]]\nusers = ["bob"]\nsm_max = "25%%"\n' >/etc/partita/policy.toml
        as bob partita run --sm 50% -- true 2>/tmp/policy.log && fail 'bob has more than the policy allows'
        grep -q 'policy (line 1) allows bob' /tmp/policy.log || fail 'the refusal does not name the policy'
        printf '[[rule]]\nsm_most = "50%%"\n' >/etc/partita/policy.toml
        partita policy check 2>/tmp/check.log && fail 'a policy with a mistake passes'
        grep -q 'line 2: sm_most' /tmp/check.log || fail 'the check does not name the line and the key'
        as bob partita run --sm 50% -- true 2>/tmp/policy.log && fail 'the old policy does not stay'
        cat /tmp/policy.log /tmp/check.log
        cp /usr/share/doc/partita/policy.toml /etc/partita/policy.toml

        # A group for a GPU.
        as bob partita kill third
        stop_daemon
        set_variable PARTITAD_GPU_GROUPS sim:h200=vision
        start_daemon $unit
        as bob partita run --sm 10% -- true 2>/tmp/group.log && fail 'bob is in no group of the GPU'
        grep -q 'only members of vision' /tmp/group.log || fail 'the refusal does not name the group'
        cat /tmp/group.log
        as alice partita run --name fourth --sm 10% -- true

        as alice partita kill first
        # Programs without `partita run`, which load the library until the package goes.
        printf '[outside]\nprograms = "limit"\nsm = "25%%"\n' >/etc/partita/policy.toml
        partita preload enable
        as alice sh -c 'eval "$(partita sim env)"; exec setsid /given/places' >/tmp/outside.log 2>/tmp/outside.err &
        until_true lines outside 3
        goes_on outside 32
        grep -q 'by the policy of this site' /tmp/outside.err || fail 'nobody tells that the program is a tenant'
        partita ps | grep -q '(by policy)' || fail 'ps does not say who wanted the tenant'
        partita ps --json | sed -n 's/.*"name": *"\(places-[0-9]*\)".*/\1/p' | head -1 | xargs partita kill
        cp /usr/share/doc/partita/policy.toml /etc/partita/policy.toml
        stop_daemon
        dpkg -P partita >/tmp/dpkg.log 2>&1
        [ ! -s /tmp/dpkg.log ] || ! grep ld.so /tmp/dpkg.log || fail 'programs miss the library'
        ;;
    tarball)
        # Root of a hardened system.
        umask 077
        mkdir -m 755 /tmp/unpacked
        # Debian's minimal root has no xz.
        cp -a /given/tree/. /tmp/unpacked
        as alice sh /tmp/unpacked/install.sh
        (PATH=/home/alice/.local/bin:$PATH; cd /home/alice; runuser -u alice -- sh -c 'partita --version')
        as alice sh /home/alice/.local/lib/partita/install.sh --uninstall
        rmdir /home/alice/.local || fail "$(find /home/alice/.local) is left"
        began=$(date +%s)
        sh /tmp/unpacked/install.sh
        use
        echo "from nothing to the end of the demo: $(($(date +%s) - began)) s"
        pages /usr/local
        together /usr/local/lib/systemd/system/partitad.service
        sh /tmp/unpacked/install.sh
        goes_on first 24
        as alice partita kill first
        as bob partita kill second
        stop_daemon
        partita preload enable
        sh /usr/local/lib/partita/install.sh --uninstall 2>/tmp/uninstall.log
        ! grep ld.so /tmp/uninstall.log || fail 'programs miss the library'
        rm -rf /var/lib/partita /var/cache/partita
        ;;
    wheel)
        python3 -m venv /tmp/venv
        began=$(date +%s)
        /tmp/venv/bin/pip install --quiet --no-index --disable-pip-version-check /given/*.whl
        PATH=/tmp/venv/bin:$PATH
        use
        echo "from nothing to the end of the demo: $(($(date +%s) - began)) s"
        pages /tmp/venv
        (cd /tmp && PATH=/usr/bin:/bin PARTITA_RUN_DIR=/tmp/run /tmp/venv/bin/python3 -B - 2>/tmp/python.log <<'PYTHON'
import ctypes, partita
from partita import _install
with partita.run(["true"], gpu="sim:h200", sm="50%", mem="1GiB", options=["--isolation=own"]) as process:
    pass
assert process.returncode == 0 and partita.tenants() == []
ctypes.CDLL(_install.library("libsmctrl.so"))
PYTHON
        ) || fail 'the Python package'
        /tmp/venv/bin/pip uninstall --quiet --yes --disable-pip-version-check partita
        # What it measured of GPUs stays.
        rm -rf /var/cache/partita
        [ -z "$(find /tmp/venv -name '*partita*')" ] || fail "$(find /tmp/venv -name '*partita*') is left"
        ;;
    rpm)
        # Debian's rpm has put the files here, and takes them away with this root.
        use
        pages /usr
        exit
        ;;
esac
files >/tmp/after
left=$(diff /tmp/before /tmp/after | grep '^[<>]' || true)
[ -z "$left" ] || fail "left or missing after the removal: $left"
[ ! -e /run/partita ] || fail "left in /run/partita: $(find /run/partita)"
