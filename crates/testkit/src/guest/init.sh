#!/usr/lib/busybox sh
# First process of a test guest: mounts, loads the modules of virtio, starts the agent.
b=/usr/lib/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
$b mount -t tmpfs -o size=75% tmp /tmp
export PATH=/usr/bin:/usr/sbin:/usr/lib/busybox-bin HOME=/root
$b --install -s /usr/lib/busybox-bin
for module in $($b cat /usr/lib/guest-modules/order); do
    $b insmod "/usr/lib/guest-modules/$module"
done
$b echo "init: ready after $($b cut -d ' ' -f 1 /proc/uptime) s"
while :; do
    /usr/bin/guest_agent serve
    $b echo "init: the agent ended"
    $b sleep 1
done
