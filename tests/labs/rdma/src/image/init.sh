#!/bin/busybox sh
# First process of the guest: loads the modules, lays a writable layer over the host's files, starts the agent there.
# The machine goes off when the agent ends, whatever the reason: a guest without an agent is of no use to anybody.

PATH=/bin
give_up() {
    echo "guest: cannot $1"
    poweroff -f
}

/bin/busybox --install -s /bin
mount -t proc proc /proc || give_up "mount proc"
mount -t sysfs sysfs /sys || give_up "mount sysfs"
mount -t devtmpfs devtmpfs /dev || give_up "mount devtmpfs"

while read -r module; do
    insmod "/modules/$module" || give_up "load $module"
done </modules/order

mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=512000,cache=loose host /host || give_up "mount the host's files"
mount -t tmpfs -o mode=755 layer /layer || give_up "mount the layer"
mkdir /layer/upper /layer/work
mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work overlay /world || give_up "lay the layer"
mount -t proc proc /world/proc || give_up "mount proc inside"
mount -t sysfs sysfs /world/sys || give_up "mount sysfs inside"
mount -t devtmpfs devtmpfs /world/dev || give_up "mount dev inside"
mkdir -p /world/dev/shm /world/dev/pts
mount -t tmpfs -o mode=1777 shm /world/dev/shm || give_up "mount shared memory"
mount -t devpts devpts /world/dev/pts || give_up "mount terminals"
mount -t tmpfs -o mode=755 run /world/run || give_up "mount run"
mkdir -p -m 700 /world/run/home

agent= host=guest
for word in $(cat /proc/cmdline); do
    case $word in
    penstock.agent=*) agent=${word#*=} ;;
    penstock.host=*) host=${word#*=} ;;
    esac
done
hostname "$host"
ip link set lo up
ulimit -l unlimited
ulimit -n 65536
ulimit -c 0
# Nothing of the host's own tools for building is to be found: what runs here was built there.
cd /
env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run/home TMPDIR=/tmp LANG=C.UTF-8 \
    chroot /world "$agent" agent
echo "guest: the agent ended with $?"
poweroff -f
