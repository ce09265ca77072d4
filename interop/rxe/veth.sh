# In the guest: va (10.78.0.1) and vb (10.78.0.2), the two ends of a veth pair, both in the initial
# namespace, for rxe works in no other. Routing by rules makes traffic between the two addresses of
# the one machine cross the pair. usage: bash veth.sh MTU
set -e
ip link show va >/dev/null 2>&1 && ip link delete va
ip link add va address 02:78:00:00:00:01 type veth peer name vb address 02:78:00:00:00:02
for end in va vb; do
    ip link set $end mtu $1 up
    sysctl -qw net.ipv4.conf.$end.accept_local=1 net.ipv4.conf.$end.rp_filter=0
done
sysctl -qw net.ipv4.conf.all.rp_filter=0
ip address add 10.78.0.1/24 dev va
ip address add 10.78.0.2/24 dev vb
ip neighbour replace 10.78.0.2 lladdr 02:78:00:00:00:02 dev va nud permanent
ip neighbour replace 10.78.0.1 lladdr 02:78:00:00:00:01 dev vb nud permanent
ip route replace 10.78.0.2 dev va src 10.78.0.1 table 101
ip route replace 10.78.0.1 dev vb src 10.78.0.2 table 102
ip rule show | grep -q 'lookup 101' && exit
ip rule add pref 10 iif lo to 10.78.0.2 lookup 101
ip rule add pref 11 iif lo to 10.78.0.1 lookup 102
# What arrives is for us; only what leaves is looked up above first.
ip rule add pref 20 lookup local
ip rule delete pref 0
