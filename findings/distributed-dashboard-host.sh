#!/usr/bin/env bash
# distributed 2025.11.0: a local cluster that is told its host still opens a port for everybody.
# Expected: `LocalCluster(host="127.0.0.1")` listens on the loopback interface only, and `dashboard_address=None`
#   starts no web server.
# Observed: the scheduler listens on 127.0.0.1, but its web server on all interfaces (0.0.0.0, port 8787 if it is free).
#   With `dashboard_address=None` the web server is there too, on the loopback interface.
# Way out: `dashboard_address="127.0.0.1:0"`, and `distributed.scheduler.http.routes: []` in the configuration.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet distributed==2025.11.0 dask==2025.11.0 psutil==7.2.2
"$folder/venv/bin/python" - 2>"$folder/log" <<'PYTHON' || { cat "$folder/log"; exit 1; }
import psutil
from distributed import LocalCluster


def listening(**options):
    """Return the addresses on which this process listens while a cluster without workers is there, and how many ports."""
    with LocalCluster(n_workers=0, host="127.0.0.1", **options):
        found = [c.laddr for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    return {address.ip for address in found}, len({address.port for address in found})


default, without = listening(), listening(dashboard_address=None)
print(f"host='127.0.0.1': listens on {sorted(default[0])}, {default[1]} ports")
print(f"and dashboard_address=None: listens on {sorted(without[0])}, {without[1]} ports")
assert default[0] - {"::"} == {"127.0.0.1", "0.0.0.0"} and default[1] == 2
assert without == ({"127.0.0.1"}, 2)
PYTHON
