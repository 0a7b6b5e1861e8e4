#!/bin/sh
# Asks a real CUDA driver for its rules: ./run.sh OUT
# Writes OUT/machine.txt, OUT/rules.jsonl (one object a line), OUT/rules.err (time of each rule).
# Reads only: no setting of the card is changed. About 90 s, 150 s at most.
# Without a C compiler the binary ./driver_rules built before is used.
here=$(cd "$(dirname "$0")" && pwd) || exit 1
out=${1:?usage: run.sh OUT}
mkdir -p "$out" || exit 1
bin=$here/driver_rules
if command -v cc >/dev/null 2>&1; then
    if cc -O2 -std=c11 -Wall -Wextra -pthread "$here/driver_rules.c" -o "$out/.driver_rules" -ldl 2>"$out/cc.err"; then
        # Outside of OUT, which holds results only.
        mv "$out/.driver_rules" /tmp/driver_rules.$$ && bin=/tmp/driver_rules.$$
    fi
    [ -s "$out/cc.err" ] || rm -f "$out/cc.err"
fi
{
    date -u
    uname -a
    echo "binary: $bin"
    echo "--- nvidia-smi"; timeout 20 nvidia-smi
    echo "--- topology"; timeout 20 nvidia-smi topo -m
    echo "--- query"
    timeout 20 nvidia-smi --query-gpu=name,uuid,pci.bus_id,driver_version,vbios_version,persistence_mode,compute_mode,mig.mode.current,ecc.mode.current,memory.total,memory.used,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,clocks.sm,clocks.mem,power.draw --format=csv
    timeout 20 nvidia-smi -q -d MEMORY
    echo "--- kernel module"
    cat /proc/driver/nvidia/version /proc/driver/nvidia/params
    for f in /proc/driver/nvidia/gpus/*/information; do cat "$f"; done
    cat /sys/module/nvidia/version
    grep -i nvidia /proc/modules
    echo "--- device files"; ls -l /dev/nvidia* /dev/nvidia-caps /dev/infiniband /dev/udmabuf
    echo "--- libraries"; ldconfig -p | grep -i 'libcuda\|libnvidia-ml\|ptxjit'
    echo "--- limits"; ulimit -a; id
    grep -i 'huge\|memtotal\|memavailable' /proc/meminfo
    grep -i 'cap\|seccomp\|vm' /proc/self/status
    cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/pids.max
    df -h /dev/shm /tmp
    grep -m1 'model name' /proc/cpuinfo
    ldd --version | head -1
} >"$out/machine.txt" 2>&1
timeout 200 "$bin" >"$out/rules.jsonl" 2>"$out/rules.err"
rc=$?
[ "$bin" = "$here/driver_rules" ] || rm -f "$bin"
echo "driver_rules: exit $rc, $(wc -l <"$out/rules.jsonl") lines"
tail -n 3 "$out/rules.err"
exit $rc
