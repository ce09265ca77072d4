/*
 * A verbs program that does what it is told: the device's own side of a conformance check.
 *
 * It needs libibverbs, and librdmacm if it is to connect by the connection manager (RDMACM), and
 * runs on any device. Commands come as JSON, one line
 * each: an object whose "do" names what to do. Each is answered by one line: an object, which is
 * {"error": ..., "errno": ...} if it could not be done. The commands are those of the type
 * `Command` of the crate urxe-conform.
 *
 *     agent                       commands on standard input
 *     agent --listen 7471         from whoever connects to this TCP port, one after the other
 *     agent --device NAME         another device than the first
 *
 * What a command names does not have to be right: everything is checked before it is used. But
 * who may connect may use the device, so the port belongs into a network that is trusted.
 */
#include "cm.h"
#include "json.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define PORT 1
#define DEPTH 128
#define SGES 4
#define INLINE 64
#define MAX_THINGS 4096
#define MAX_WRS 512
#define MAX_GIDS 256
#define MAX_MEMBERS 16
#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

enum kind { UNUSED, MR, CQ, SRQ, QP, AH, MW, CALL };

/* What commands made, by the names that they gave it. */
struct thing {
	enum kind kind;
	char name[64];
	union {
		struct { struct ibv_mr *mr; char *bytes; size_t len; };
		struct ibv_cq *cq;
		struct ibv_srq *srq;
		struct { struct ibv_qp *qp; bool extended; };
		struct ibv_ah *ah;
		struct ibv_mw *mw;
		struct call *call;
	};
};

static struct thing things[MAX_THINGS];
static struct ibv_context *context;
static struct ibv_pd *pd;

/* The answer to a command, and whether it became an error. */
static FILE *out;
static char answer[1 << 20];
static size_t answer_len;

static void say(const char *format, ...)
{
	va_list args;
	int len;

	va_start(args, format);
	len = vsnprintf(answer + answer_len, sizeof(answer) - answer_len, format, args);
	va_end(args);
	if (len > 0 && answer_len + len < sizeof(answer))
		answer_len += len;
}

/* An error takes the place of whatever was said. */
static int refuse(int error, const char *format, ...)
{
	char text[256];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	for (char *at = text; *at; at++)
		if (*at == '"' || *at == '\\' || (unsigned char)*at < ' ')
			*at = '\'';
	answer_len = 0;
	say("{\"error\": \"%s: %s\", \"errno\": %d}", text, strerror(error), error);
	return -1;
}

/* Verbs return errno, or -1 and set it. */
static int check(int result, const char *verb)
{
	if (!result)
		return 0;
	return refuse(result > 0 ? result : errno, "%s", verb);
}

/* Parts of commands. */

static const char *text(const struct json *from, const char *key)
{
	const struct json *value = json_get(from, key);

	return value && value->kind == JSON_TEXT ? value->text : NULL;
}

static uint64_t number(const struct json *from, const char *key, uint64_t otherwise)
{
	const struct json *value = json_get(from, key);

	return value && (value->kind == JSON_NUMBER || value->kind == JSON_BOOL) ? value->integer
										 : otherwise;
}

/* A number that stands as a text in hex. */
static uint64_t hex_number(const struct json *from, const char *key)
{
	const char *value = text(from, key);

	return value ? strtoull(value, NULL, 16) : 0;
}

static struct thing *find(const char *name)
{
	for (unsigned int i = 0; name && i < MAX_THINGS; i++)
		if (things[i].kind != UNUSED && !strcmp(things[i].name, name))
			return &things[i];
	return NULL;
}

/* A thing of this kind that a command names under `key`. */
static struct thing *named(const struct json *command, const char *key, enum kind kind)
{
	const char *name = text(command, key);
	struct thing *thing = find(name);

	if (thing && thing->kind == kind)
		return thing;
	refuse(ENOENT, "%s: there is no '%s' of that kind", key, name ? name : "");
	return NULL;
}

/* A place for something new. */
static struct thing *vacant(const struct json *command)
{
	const char *name = text(command, "name");

	if (!name || strlen(name) >= sizeof(things[0].name) || find(name)) {
		refuse(EINVAL, "name: missing, too long or taken");
		return NULL;
	}
	for (unsigned int i = 0; i < MAX_THINGS; i++) {
		if (things[i].kind == UNUSED) {
			memset(&things[i], 0, sizeof(things[i]));
			strcpy(things[i].name, name);
			return &things[i];
		}
	}
	refuse(ENOSPC, "name: there are %d things already", MAX_THINGS);
	return NULL;
}

static int add(struct thing *thing, enum kind kind, const void *made, const char *verb)
{
	if (!made)
		return refuse(errno, "%s", verb);
	thing->kind = kind;
	return 0;
}

/* An address as a GID: IPv4 as IPv4-mapped IPv6. */
static int gid_of(const char *address, union ibv_gid *gid)
{
	memset(gid, 0, sizeof(*gid));
	if (address && inet_pton(AF_INET6, address, gid->raw) == 1)
		return 0;
	gid->raw[10] = gid->raw[11] = 0xff;
	if (address && inet_pton(AF_INET, address, gid->raw + 12) == 1)
		return 0;
	return refuse(EINVAL, "'%s' is no address", address ? address : "");
}

/* Where in memory a command means: `len` bytes at `off`. */
static char *place(const struct thing *mr, uint64_t off, uint64_t len)
{
	if (off <= mr->len && len <= mr->len - off)
		return mr->bytes + off;
	refuse(EINVAL, "%llu bytes at %llu of a memory of %zu", (unsigned long long)len,
	       (unsigned long long)off, mr->len);
	return NULL;
}

/* Commands about memory. */

static int do_reg_mr(const struct json *command)
{
	size_t len = number(command, "len", 0), whole = (len + 4095) & ~(size_t)4095;
	struct thing *thing = vacant(command);

	if (!thing)
		return -1;
	if (len == 0 || len > 1 << 30)
		return refuse(EINVAL, "len: %zu, expected 1 to 2^30", len);
	thing->len = len;
	thing->bytes = aligned_alloc(4096, whole);
	if (!thing->bytes)
		return refuse(ENOMEM, "len: %zu", len);
	memset(thing->bytes, 0, whole);
	thing->mr = ibv_reg_mr(pd, thing->bytes, len, number(command, "access", 0));
	if (!thing->mr) {
		int error = errno;

		free(thing->bytes);
		return refuse(error, "ibv_reg_mr");
	}
	thing->kind = MR;
	say("{\"addr\": %llu, \"rkey\": %u, \"lkey\": %u}",
	    (unsigned long long)(uintptr_t)thing->bytes, thing->mr->rkey, thing->mr->lkey);
	return 0;
}

static int do_write(const struct json *command)
{
	struct thing *mr = named(command, "mr", MR);
	const char *hex = text(command, "hex");
	size_t len = hex ? strlen(hex) / 2 : 0;
	char *at = mr ? place(mr, number(command, "off", 0), len) : NULL;

	if (!at)
		return -1;
	for (size_t i = 0; i < len; i++) {
		char digits[3] = { hex[2 * i], hex[2 * i + 1], 0 };

		at[i] = strtoul(digits, NULL, 16);
	}
	return 0;
}

static int do_read(const struct json *command)
{
	struct thing *mr = named(command, "mr", MR);
	size_t len = number(command, "len", 0);
	const volatile char *at = mr ? place(mr, number(command, "off", 0), len) : NULL;

	if (!at)
		return -1;
	if (len > sizeof(answer) / 2 - 64)
		return refuse(EINVAL, "len: %zu, expected at most %zu", len, sizeof(answer) / 2 - 64);
	say("{\"hex\": \"");
	for (size_t i = 0; i < len; i++)
		say("%02x", (unsigned char)at[i]);
	say("\"}");
	return 0;
}

/* Commands about queues and QPs. */

static int do_create_cq(const struct json *command)
{
	struct thing *thing = vacant(command);

	if (!thing)
		return -1;
	thing->cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0);
	return add(thing, CQ, thing->cq, "ibv_create_cq");
}

static int do_create_srq(const struct json *command)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = SGES } };
	struct thing *thing = vacant(command);

	if (!thing)
		return -1;
	thing->srq = ibv_create_srq(pd, &init);
	return add(thing, SRQ, thing->srq, "ibv_create_srq");
}

static int do_modify_srq(const struct json *command)
{
	struct thing *srq = named(command, "srq", SRQ);
	struct ibv_srq_attr attr = { .srq_limit = number(command, "limit", 0) };

	return srq ? check(ibv_modify_srq(srq->srq, &attr, IBV_SRQ_LIMIT), "ibv_modify_srq") : -1;
}

/* ATOMIC WRITE is posted by the extended interface only, where there is one. */
static struct ibv_qp *create_extended(const struct ibv_qp_init_attr *init)
{
	struct ibv_qp_init_attr_ex extended = {
		.send_cq = init->send_cq, .recv_cq = init->recv_cq, .srq = init->srq,
		.cap = init->cap, .qp_type = init->qp_type, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
				  IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
				  IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
				  IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV |
				  IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV |
				  IBV_QP_EX_WITH_ATOMIC_WRITE,
	};

	return init->qp_type == IBV_QPT_RC ? ibv_create_qp_ex(context, &extended) : NULL;
}

static int do_create_qp(const struct json *command)
{
	const char *type = text(command, "type");
	struct thing *cq = named(command, "cq", CQ), *srq = NULL, *thing;
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = DEPTH, .max_send_sge = SGES, .max_inline_data = INLINE },
	};

	if (!cq || (text(command, "srq") && !(srq = named(command, "srq", SRQ))))
		return -1;
	if (type && !strcmp(type, "RC"))
		init.qp_type = IBV_QPT_RC;
	else if (type && !strcmp(type, "UC"))
		init.qp_type = IBV_QPT_UC;
	else if (type && !strcmp(type, "UD"))
		init.qp_type = IBV_QPT_UD;
	else
		return refuse(EINVAL, "type: '%s', expected RC, UC or UD", type ? type : "");
	init.send_cq = init.recv_cq = cq->cq;
	if (srq) {
		init.srq = srq->srq;
	} else {
		init.cap.max_recv_wr = DEPTH;
		init.cap.max_recv_sge = SGES;
	}
	thing = vacant(command);
	if (!thing)
		return -1;
	thing->qp = create_extended(&init);
	thing->extended = thing->qp != NULL;
	if (!thing->qp)
		thing->qp = ibv_create_qp(pd, &init);
	if (add(thing, QP, thing->qp, "ibv_create_qp"))
		return -1;
	say("{\"qpn\": %u}", thing->qp->qp_num);
	return 0;
}

static const struct { const char *name; enum ibv_qp_state state; } states[] = {
	{ "RESET", IBV_QPS_RESET }, { "INIT", IBV_QPS_INIT }, { "RTR", IBV_QPS_RTR },
	{ "RTS", IBV_QPS_RTS },     { "SQD", IBV_QPS_SQD },   { "SQE", IBV_QPS_SQE },
	{ "ERR", IBV_QPS_ERR },
};

static enum ibv_qp_state state_named(const char *name, enum ibv_qp_state otherwise)
{
	for (unsigned int i = 0; name && i < COUNT(states); i++)
		if (!strcmp(states[i].name, name))
			return states[i].state;
	return otherwise;
}

static int path_of(const struct json *from, struct ibv_ah_attr *attr)
{
	attr->is_global = 1;
	attr->port_num = PORT;
	attr->grh.sgid_index = number(from, "gid_index", 0);
	attr->grh.hop_limit = 64;
	return gid_of(text(from, "dgid"), &attr->grh.dgid);
}

static int step(struct ibv_qp *qp, enum ibv_qp_state state, struct ibv_qp_attr attr, int mask)
{
	attr.qp_state = state;
	return check(ibv_modify_qp(qp, &attr, mask | IBV_QP_STATE), "ibv_modify_qp");
}

static int do_connect(const struct json *command)
{
	enum ibv_qp_state until = state_named(text(command, "until"), IBV_QPS_RTS);
	struct thing *thing = named(command, "qp", QP);
	struct ibv_qp_attr attr = {
		.port_num = PORT,
		.qp_access_flags = number(command, "access", 0),
		.dest_qp_num = number(command, "dqpn", 0),
		.rq_psn = number(command, "rq_psn", 0),
		.sq_psn = number(command, "sq_psn", 0),
		.timeout = number(command, "timeout", 14),
		.retry_cnt = number(command, "retry_cnt", 7),
		.rnr_retry = number(command, "rnr_retry", 7),
		.min_rnr_timer = number(command, "min_rnr_timer", 12),
		.max_rd_atomic = number(command, "max_rd_atomic", 1),
		.max_dest_rd_atomic = number(command, "max_dest_rd_atomic", 1),
	};
	int init = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	int rtr = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	int rts = IBV_QP_SQ_PSN;

	if (!thing || path_of(command, &attr.ah_attr))
		return -1;
	for (attr.path_mtu = IBV_MTU_256;
	     attr.path_mtu < IBV_MTU_4096 &&
	     128u << attr.path_mtu < number(command, "mtu", 1024); attr.path_mtu++)
		;
	if (thing->qp->qp_type == IBV_QPT_RC) {
		rtr |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		rts |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	if (until == IBV_QPS_RESET)
		return 0;
	if (step(thing->qp, IBV_QPS_INIT, attr, init) || until == IBV_QPS_INIT)
		return answer_len ? -1 : 0;
	if (step(thing->qp, IBV_QPS_RTR, attr, rtr) || until == IBV_QPS_RTR)
		return answer_len ? -1 : 0;
	return step(thing->qp, IBV_QPS_RTS, attr, rts);
}

static int do_start_datagrams(const struct json *command)
{
	struct thing *thing = named(command, "qp", QP);
	struct ibv_qp_attr attr = {
		.port_num = PORT,
		.qkey = number(command, "qkey", 0),
		.sq_psn = number(command, "sq_psn", 0),
	};

	if (!thing)
		return -1;
	if (step(thing->qp, IBV_QPS_INIT, attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) ||
	    step(thing->qp, IBV_QPS_RTR, attr, 0))
		return -1;
	return step(thing->qp, IBV_QPS_RTS, attr, IBV_QP_SQ_PSN);
}

static int do_modify_qp(const struct json *command)
{
	struct thing *thing = named(command, "qp", QP);
	struct ibv_qp_attr attr = {
		.port_num = PORT,
		.qp_state = state_named(text(command, "state"), IBV_QPS_UNKNOWN),
		.qp_access_flags = number(command, "access", 0),
		.qkey = number(command, "qkey", 0),
		.sq_psn = number(command, "sq_psn", 0),
		.timeout = number(command, "timeout", 0),
		.retry_cnt = number(command, "retry_cnt", 0),
		.rnr_retry = number(command, "rnr_retry", 0),
		.max_rd_atomic = number(command, "max_rd_atomic", 0),
		.min_rnr_timer = number(command, "min_rnr_timer", 0),
	};
	static const struct { const char *name; int mask; } fields[] = {
		{ "state", IBV_QP_STATE },           { "access", IBV_QP_ACCESS_FLAGS },
		{ "qkey", IBV_QP_QKEY },             { "sq_psn", IBV_QP_SQ_PSN },
		{ "timeout", IBV_QP_TIMEOUT },       { "retry_cnt", IBV_QP_RETRY_CNT },
		{ "rnr_retry", IBV_QP_RNR_RETRY },   { "max_rd_atomic", IBV_QP_MAX_QP_RD_ATOMIC },
		{ "min_rnr_timer", IBV_QP_MIN_RNR_TIMER },
	};
	int mask = 0;

	if (!thing)
		return -1;
	for (unsigned int i = 0; i < COUNT(fields); i++)
		if (json_get(command, fields[i].name))
			mask |= fields[i].mask;
	if (attr.qp_state == IBV_QPS_INIT)
		mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	if (attr.qp_state == IBV_QPS_SQD) {
		/* Without it a device need not tell that the queue has drained. */
		attr.en_sqd_async_notify = 1;
		mask |= IBV_QP_EN_SQD_ASYNC_NOTIFY;
	}
	return check(ibv_modify_qp(thing->qp, &attr, mask), "ibv_modify_qp");
}

static int do_query_qp(const struct json *command)
{
	struct thing *thing = named(command, "qp", QP);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	const char *name = "RESET";

	if (!thing || check(ibv_query_qp(thing->qp, &attr,
					 IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RQ_PSN, &init),
			    "ibv_query_qp"))
		return -1;
	for (unsigned int i = 0; i < COUNT(states); i++)
		if (states[i].state == attr.qp_state)
			name = states[i].name;
	say("{\"state\": \"%s\", \"sq_psn\": %u, \"rq_psn\": %u}", name, attr.sq_psn, attr.rq_psn);
	return 0;
}

static int do_create_ah(const struct json *command)
{
	struct ibv_ah_attr attr = { 0 };
	struct thing *thing = vacant(command);

	if (!thing || path_of(command, &attr))
		return -1;
	thing->ah = ibv_create_ah(pd, &attr);
	return add(thing, AH, thing->ah, "ibv_create_ah");
}

static int do_mcast(const struct json *command,
		    int (*verb)(struct ibv_qp *, const union ibv_gid *, uint16_t), const char *name)
{
	struct thing *thing = named(command, "qp", QP);
	union ibv_gid gid;

	if (!thing || gid_of(text(command, "gid"), &gid))
		return -1;
	return check(verb(thing->qp, &gid, 0), name);
}

/* The sockets by which this machine is a member of groups, until what was made is closed. */
static int members[MAX_MEMBERS], member_count;

/*
 * Makes the device's network interface a member of a group, as the connection manager would:
 * rxe is not given what IP does not let in. A device that has no such interface needs it not.
 */
static void become_member(const union ibv_gid *gid)
{
	static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };
	int is_v4 = !memcmp(gid->raw, mapped, sizeof(mapped));
	struct group_req group = { 0 };
	char path[256], name[64] = "";
	FILE *file = NULL;

	for (int i = 0; i < MAX_GIDS && !group.gr_interface; i++) {
		snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%d/gid_attrs/ndevs/%d",
			 ibv_get_device_name(context->device), PORT, i);
		file = fopen(path, "r");
		if (!file)
			return;
		if (fgets(name, sizeof(name), file)) {
			name[strcspn(name, "\n")] = 0;
			group.gr_interface = if_nametoindex(name);
		}
		fclose(file);
	}
	if (!group.gr_interface || member_count == MAX_MEMBERS)
		return;
	if (is_v4) {
		struct sockaddr_in *address = (struct sockaddr_in *)&group.gr_group;

		address->sin_family = AF_INET;
		memcpy(&address->sin_addr, gid->raw + 12, 4);
	} else {
		struct sockaddr_in6 *address = (struct sockaddr_in6 *)&group.gr_group;

		address->sin6_family = AF_INET6;
		memcpy(&address->sin6_addr, gid->raw, 16);
	}
	members[member_count] = socket(is_v4 ? AF_INET : AF_INET6, SOCK_DGRAM, 0);
	if (members[member_count] < 0)
		return;
	/* Refused if it is one already, which is as good. */
	setsockopt(members[member_count++], is_v4 ? IPPROTO_IP : IPPROTO_IPV6, MCAST_JOIN_GROUP,
		   &group, sizeof(group));
	/* Some drivers, virtio-net's among them, tell their hardware of it a little later. */
	usleep(50000);
}

static int do_attach_mcast(const struct json *command)
{
	union ibv_gid gid;

	if (!gid_of(text(command, "gid"), &gid))
		become_member(&gid);
	return do_mcast(command, ibv_attach_mcast, "ibv_attach_mcast");
}

static int do_detach_mcast(const struct json *command)
{
	return do_mcast(command, ibv_detach_mcast, "ibv_detach_mcast");
}

/* Work requests. */

/* The scatter list of a work request: pairs of offset and length. -1: there is something wrong. */
static int sges_of(const struct json *wr, const struct thing *mr, struct ibv_sge sges[SGES])
{
	const struct json *list = json_get(wr, "sges"), *pair;
	int count = 0;

	for (pair = list ? list->first : NULL; pair; pair = pair->next) {
		const struct json *off = pair->first, *len = off ? off->next : NULL;

		if (!len || count == SGES)
			return refuse(EINVAL, "sges: expected up to %d pairs", SGES);
		if (!place(mr, off->integer, len->integer))
			return -1;
		sges[count++] = (struct ibv_sge){ (uintptr_t)mr->bytes + off->integer, len->integer,
						  mr->mr->lkey };
	}
	return count;
}

static int do_post_recv(const struct json *command)
{
	struct thing *mr = named(command, "mr", MR), *to = find(text(command, "to"));
	const struct json *wrs = json_get(command, "wrs"), *wr;
	struct ibv_recv_wr *bad;

	if (!mr)
		return -1;
	if (!to || (to->kind != QP && to->kind != SRQ))
		return refuse(ENOENT, "to: expected a QP or an SRQ");
	for (wr = wrs ? wrs->first : NULL; wr; wr = wr->next) {
		struct ibv_sge sges[SGES];
		struct ibv_recv_wr recv = { .wr_id = number(wr, "id", 0), .sg_list = sges };

		recv.num_sge = sges_of(wr, mr, sges);
		if (recv.num_sge < 0)
			return -1;
		if (check(to->kind == QP ? ibv_post_recv(to->qp, &recv, &bad)
					 : ibv_post_srq_recv(to->srq, &recv, &bad),
			  "ibv_post_recv"))
			return -1;
	}
	return 0;
}

static int window_of(const struct json *from, struct ibv_mw_bind_info *info)
{
	const struct json *window = json_get(from, "window");
	struct thing *mr = named(window, "of", MR);
	uint64_t off = number(window, "off", 0), len = number(window, "len", 0);

	if (!mr || !place(mr, off, len))
		return -1;
	*info = (struct ibv_mw_bind_info){ mr->mr, (uintptr_t)mr->bytes + off, len,
					   number(window, "access", 0) };
	return 0;
}

static const struct { const char *name; enum ibv_wr_opcode opcode; } operations[] = {
	{ "SEND", IBV_WR_SEND },
	{ "SEND_WITH_IMM", IBV_WR_SEND_WITH_IMM },
	{ "SEND_WITH_INV", IBV_WR_SEND_WITH_INV },
	{ "RDMA_WRITE", IBV_WR_RDMA_WRITE },
	{ "RDMA_WRITE_WITH_IMM", IBV_WR_RDMA_WRITE_WITH_IMM },
	{ "RDMA_READ", IBV_WR_RDMA_READ },
	{ "CMP_SWAP", IBV_WR_ATOMIC_CMP_AND_SWP },
	{ "FETCH_ADD", IBV_WR_ATOMIC_FETCH_AND_ADD },
	{ "LOCAL_INV", IBV_WR_LOCAL_INV },
	{ "BIND_MW", IBV_WR_BIND_MW },
};

static int post_atomic_write(const struct thing *qp, const struct json *wr)
{
	struct ibv_qp_ex *extended;
	unsigned char bytes[8];
	uint64_t data = htobe64(hex_number(wr, "data"));

	if (!qp->extended)
		return refuse(EOPNOTSUPP, "ATOMIC_WRITE");
	memcpy(bytes, &data, sizeof(bytes));
	extended = ibv_qp_to_qp_ex(qp->qp);
	ibv_wr_start(extended);
	extended->wr_id = number(wr, "id", 0);
	extended->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_atomic_write(extended, number(wr, "rkey", 0), number(wr, "raddr", 0), bytes);
	return check(ibv_wr_complete(extended), "ibv_wr_complete");
}

/* Fills a work request from a command; its new key if it binds a window. */
static int send_of(const struct json *wr, struct ibv_send_wr *send, uint32_t *bound)
{
	const char *name = text(wr, "op");
	unsigned int i;

	for (i = 0; i < COUNT(operations); i++)
		if (name && !strcmp(operations[i].name, name))
			break;
	if (i == COUNT(operations))
		return refuse(EOPNOTSUPP, "op: '%s', which libibverbs of rdma-core 44 cannot post",
			      name ? name : "");
	send->opcode = operations[i].opcode;
	send->wr_id = number(wr, "id", 0);
	send->send_flags = (number(wr, "signaled", 1) ? IBV_SEND_SIGNALED : 0) |
			   (number(wr, "fence", 0) ? IBV_SEND_FENCE : 0) |
			   (number(wr, "solicited", 0) ? IBV_SEND_SOLICITED : 0) |
			   (number(wr, "inline", 0) ? IBV_SEND_INLINE : 0);
	if (json_get(wr, "inv"))
		send->invalidate_rkey = number(wr, "inv", 0);
	else
		send->imm_data = htonl(number(wr, "imm", 0));
	if (send->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || send->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		send->wr.atomic.remote_addr = number(wr, "raddr", 0);
		send->wr.atomic.rkey = number(wr, "rkey", 0);
		send->wr.atomic.compare_add = hex_number(wr, "operand");
		send->wr.atomic.swap = hex_number(wr, "swap");
	} else if (send->opcode == IBV_WR_BIND_MW) {
		struct thing *mw = named(wr, "mw", MW);

		if (!mw || window_of(wr, &send->bind_mw.bind_info))
			return -1;
		send->bind_mw.mw = mw->mw;
		send->bind_mw.rkey = *bound = ibv_inc_rkey(mw->mw->rkey);
	} else if (json_get(wr, "ah")) {
		struct thing *ah = named(wr, "ah", AH);

		if (!ah)
			return -1;
		send->wr.ud.ah = ah->ah;
		send->wr.ud.remote_qpn = number(wr, "dqpn", 0);
		send->wr.ud.remote_qkey = number(wr, "qkey", 0);
	} else {
		send->wr.rdma.remote_addr = number(wr, "raddr", 0);
		send->wr.rdma.rkey = number(wr, "rkey", 0);
	}
	return 0;
}

/* Posts them as one list, so that the device sees all of them at once. */
static int do_post_send(const struct json *command)
{
	static struct ibv_send_wr sends[MAX_WRS];
	static struct ibv_sge sges[MAX_WRS][SGES];
	static uint32_t bound[MAX_WRS];
	struct thing *qp = named(command, "qp", QP), *mr = qp ? named(command, "mr", MR) : NULL;
	const struct json *wrs = json_get(command, "wrs"), *wr;
	struct ibv_send_wr *bad;
	unsigned int count = 0, binds = 0;

	if (!mr)
		return -1;
	for (wr = wrs ? wrs->first : NULL; wr; wr = wr->next) {
		const char *op = text(wr, "op");

		if (op && !strcmp(op, "ATOMIC_WRITE")) {
			if (count)
				return refuse(EINVAL, "an ATOMIC_WRITE stands first in its list");
			if (post_atomic_write(qp, wr))
				return -1;
			continue;
		}
		if (count == MAX_WRS)
			return refuse(ENOSPC, "wrs: more than %d", MAX_WRS);
		memset(&sends[count], 0, sizeof(sends[count]));
		sends[count].sg_list = sges[count];
		sends[count].num_sge = sges_of(wr, mr, sges[count]);
		bound[binds] = 0;
		if (sends[count].num_sge < 0 || send_of(wr, &sends[count], &bound[binds]))
			return -1;
		binds += bound[binds] != 0;
		if (count)
			sends[count - 1].next = &sends[count];
		count++;
	}
	if (count && check(ibv_post_send(qp->qp, sends, &bad), "ibv_post_send"))
		return -1;
	/* libibverbs leaves the key of a window of type 2 to the program. */
	for (unsigned int i = 0; i < count; i++)
		if (sends[i].opcode == IBV_WR_BIND_MW)
			sends[i].bind_mw.mw->rkey = sends[i].bind_mw.rkey;
	say("{\"rkeys\": [");
	for (unsigned int i = 0; i < binds; i++)
		say("%s%u", i ? ", " : "", bound[i]);
	say("]}");
	return 0;
}

/* Windows. */

static int do_alloc_mw(const struct json *command)
{
	struct thing *thing = vacant(command);

	if (!thing)
		return -1;
	thing->mw = ibv_alloc_mw(pd, number(command, "type", 1) == 1 ? IBV_MW_TYPE_1
								     : IBV_MW_TYPE_2);
	if (add(thing, MW, thing->mw, "ibv_alloc_mw"))
		return -1;
	say("{\"rkey\": %u}", thing->mw->rkey);
	return 0;
}

static int do_bind_mw(const struct json *command)
{
	struct thing *qp = named(command, "qp", QP), *mw = qp ? named(command, "mw", MW) : NULL;
	struct ibv_mw_bind bind = { .wr_id = number(command, "id", 0),
				    .send_flags = IBV_SEND_SIGNALED };

	if (!mw || window_of(command, &bind.bind_info))
		return -1;
	if (check(ibv_bind_mw(qp->qp, mw->mw, &bind), "ibv_bind_mw"))
		return -1;
	say("{\"rkey\": %u}", mw->mw->rkey);
	return 0;
}

/* The connection manager. */

#ifdef RDMACM
static int do_cm_connect(const struct json *command)
{
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 };
	struct sockaddr_in v4 = { .sin_family = AF_INET };
	const char *to = text(command, "to"), *verb = "";
	struct thing *thing = vacant(command);
	struct sockaddr *address = (struct sockaddr *)&v4;

	v4.sin_port = v6.sin6_port = htons(number(command, "port", 0));
	if (!thing)
		return -1;
	if (to && inet_pton(AF_INET6, to, &v6.sin6_addr) == 1)
		address = (struct sockaddr *)&v6;
	else if (!to || inet_pton(AF_INET, to, &v4.sin_addr) != 1)
		return refuse(EINVAL, "to: '%s' is no address", to ? to : "");
	thing->call = call_begin(address, &verb);
	return add(thing, CALL, thing->call, verb);
}

static void end_call(struct call *call)
{
	call_end(call);
}

/* Waits until there is something to read; connections go on meanwhile. */
static void wait_for(int in)
{
	struct pollfd fds[] = { { .fd = in, .events = POLLIN }, { .events = POLLIN } };

	do {
		calls_follow();
		fds[1].fd = calls_fd();
	} while (poll(fds, COUNT(fds), -1) >= 0 && !fds[0].revents);
}
#else
static void end_call(struct call *call)
{
	(void)call;
}

static void wait_for(int in)
{
	(void)in;
}
#endif

/* What has happened. */

static const char *const statuses[] = {
	[IBV_WC_SUCCESS] = "SUCCESS",
	[IBV_WC_LOC_LEN_ERR] = "LOC_LEN_ERR",
	[IBV_WC_LOC_QP_OP_ERR] = "LOC_QP_OP_ERR",
	[IBV_WC_LOC_PROT_ERR] = "LOC_PROT_ERR",
	[IBV_WC_WR_FLUSH_ERR] = "WR_FLUSH_ERR",
	[IBV_WC_MW_BIND_ERR] = "MW_BIND_ERR",
	[IBV_WC_BAD_RESP_ERR] = "BAD_RESP_ERR",
	[IBV_WC_LOC_ACCESS_ERR] = "LOC_ACCESS_ERR",
	[IBV_WC_REM_INV_REQ_ERR] = "REM_INV_REQ_ERR",
	[IBV_WC_REM_ACCESS_ERR] = "REM_ACCESS_ERR",
	[IBV_WC_REM_OP_ERR] = "REM_OP_ERR",
	[IBV_WC_RETRY_EXC_ERR] = "RETRY_EXC_ERR",
	[IBV_WC_RNR_RETRY_EXC_ERR] = "RNR_RETRY_EXC_ERR",
};

static const struct { enum ibv_wc_opcode opcode; const char *name; } opcodes[] = {
	{ IBV_WC_SEND, "SEND" },
	{ IBV_WC_RDMA_WRITE, "RDMA_WRITE" },
	{ IBV_WC_RDMA_READ, "RDMA_READ" },
	{ IBV_WC_COMP_SWAP, "COMP_SWAP" },
	{ IBV_WC_FETCH_ADD, "FETCH_ADD" },
	{ IBV_WC_BIND_MW, "BIND_MW" },
	{ IBV_WC_LOCAL_INV, "LOCAL_INV" },
	{ IBV_WC_ATOMIC_WRITE, "ATOMIC_WRITE" },
	{ IBV_WC_RECV, "RECV" },
	{ IBV_WC_RECV_RDMA_WITH_IMM, "RECV_RDMA_WITH_IMM" },
};

static void say_completion(const struct ibv_wc *wc)
{
	const char *status = wc->status < COUNT(statuses) ? statuses[wc->status] : NULL;
	const char *opcode = "OTHER";

	say("{\"id\": %llu, \"status\": \"%s\", \"vendor_err\": %u",
	    (unsigned long long)wc->wr_id, status ? status : "OTHER",
	    wc->status == IBV_WC_SUCCESS ? 0 : wc->vendor_err);
	if (wc->status == IBV_WC_SUCCESS) {
		for (unsigned int i = 0; i < COUNT(opcodes); i++)
			if (opcodes[i].opcode == wc->opcode)
				opcode = opcodes[i].name;
		say(", \"op\": \"%s\", \"qpn\": %u", opcode, wc->qp_num);
		if (wc->opcode & IBV_WC_RECV)
			say(", \"len\": %u, \"src_qpn\": %u, \"flags\": %u", wc->byte_len, wc->src_qp,
			    wc->wc_flags);
		if (wc->wc_flags & IBV_WC_WITH_IMM)
			say(", \"imm\": %u", ntohl(wc->imm_data));
		else if (wc->wc_flags & IBV_WC_WITH_INV)
			say(", \"inv\": %u", wc->invalidated_rkey);
	}
	say("}");
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static int do_poll(const struct json *command)
{
	const struct json *timeout = json_get(command, "timeout");
	double end = now() + (timeout ? timeout->number : 0);
	unsigned int count = number(command, "count", 1), found = 0;
	struct thing *thing = named(command, "cq", CQ);

	if (!thing)
		return -1;
	say("{\"wcs\": [");
	while (found < count) {
		/* Drivers leave out fields that mean nothing for a transport. */
		struct ibv_wc wc = { 0 };
		int polled = ibv_poll_cq(thing->cq, 1, &wc);

		if (polled < 0)
			return refuse(EIO, "ibv_poll_cq");
		if (polled) {
			say("%s", found++ ? ", " : "");
			say_completion(&wc);
		} else if (now() >= end) {
			break;
		} else {
			usleep(200);
		}
	}
	say("]}");
	return 0;
}

static const struct { enum ibv_event_type type; const char *name; enum kind of; } events[] = {
	{ IBV_EVENT_QP_FATAL, "QP_FATAL", QP },
	{ IBV_EVENT_QP_REQ_ERR, "QP_REQ_ERR", QP },
	{ IBV_EVENT_QP_ACCESS_ERR, "QP_ACCESS_ERR", QP },
	{ IBV_EVENT_COMM_EST, "COMM_EST", QP },
	{ IBV_EVENT_SQ_DRAINED, "SQ_DRAINED", QP },
	{ IBV_EVENT_QP_LAST_WQE_REACHED, "QP_LAST_WQE_REACHED", QP },
	{ IBV_EVENT_CQ_ERR, "CQ_ERR", CQ },
	{ IBV_EVENT_SRQ_ERR, "SRQ_ERR", SRQ },
	{ IBV_EVENT_SRQ_LIMIT_REACHED, "SRQ_LIMIT_REACHED", SRQ },
};

static int do_events(const struct json *command)
{
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	const char *comma = "";

	(void)command;
	say("{\"events\": [");
	while (poll(&fd, 1, 0) > 0) {
		struct ibv_async_event event;
		const char *kind = "OTHER", *name = NULL;

		if (ibv_get_async_event(context, &event))
			break;
		for (unsigned int i = 0; i < COUNT(events); i++) {
			if (events[i].type != event.event_type)
				continue;
			kind = events[i].name;
			/* The element is a union of pointers, and so are things. */
			for (unsigned int j = 0; j < MAX_THINGS; j++)
				if (things[j].kind == events[i].of &&
				    (void *)things[j].qp == (void *)event.element.qp)
					name = things[j].name;
		}
		ibv_ack_async_event(&event);
		say("%s{\"event\": \"%s\"", comma, kind);
		if (name)
			say(", \"name\": \"%s\"", name);
		say("}");
		comma = ", ";
	}
	say("]}");
	return 0;
}

/* The rest. */

/* Whether a GID is one of RoCE v2, where the system tells the type. */
static int is_roce_v2(int index)
{
	char path[256], type[32] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%d/gid_attrs/types/%d",
		 ibv_get_device_name(context->device), PORT, index);
	file = fopen(path, "r");
	if (!file)
		return 1;
	if (!fgets(type, sizeof(type), file))
		type[0] = 0;
	fclose(file);
	return !type[0] || !strncmp(type, "RoCE v2", 7);
}

static int do_hello(const struct json *command)
{
	static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };
	struct ibv_device_attr device;
	struct ibv_port_attr port;
	struct utsname system;
	const char *comma = "";

	(void)command;
	if (check(ibv_query_device(context, &device), "ibv_query_device") ||
	    check(ibv_query_port(context, PORT, &port), "ibv_query_port"))
		return -1;
	uname(&system);
	say("{\"device\": \"%s\", \"mtu\": %u, \"atomics\": %s, \"system\": \"%s %s\", \"gids\": {",
	    ibv_get_device_name(context->device), 128u << port.active_mtu,
	    device.atomic_cap == IBV_ATOMIC_NONE ? "false" : "true", system.sysname,
	    system.release);
	for (int i = 0; i < port.gid_tbl_len && i < MAX_GIDS; i++) {
		static const union ibv_gid none;
		char address[INET6_ADDRSTRLEN];
		union ibv_gid gid;

		if (ibv_query_gid(context, PORT, i, &gid) || !memcmp(&gid, &none, sizeof(gid)) ||
		    !is_roce_v2(i))
			continue;
		if (!memcmp(gid.raw, mapped, sizeof(mapped)))
			inet_ntop(AF_INET, gid.raw + 12, address, sizeof(address));
		else
			inet_ntop(AF_INET6, gid.raw, address, sizeof(address));
		say("%s\"%s\": %d", comma, address, i);
		comma = ", ";
	}
	say("}}");
	return 0;
}

static int destroy(struct thing *thing)
{
	enum kind kind = thing->kind;

	thing->kind = UNUSED;
	switch (kind) {
	case MR:
		if (check(ibv_dereg_mr(thing->mr), "ibv_dereg_mr"))
			return -1;
		free(thing->bytes);
		return 0;
	case CQ:
		return check(ibv_destroy_cq(thing->cq), "ibv_destroy_cq");
	case SRQ:
		return check(ibv_destroy_srq(thing->srq), "ibv_destroy_srq");
	case QP:
		return check(ibv_destroy_qp(thing->qp), "ibv_destroy_qp");
	case AH:
		return check(ibv_destroy_ah(thing->ah), "ibv_destroy_ah");
	case MW:
		return check(ibv_dealloc_mw(thing->mw), "ibv_dealloc_mw");
	case CALL:
		end_call(thing->call);
		return 0;
	case UNUSED:
		break;
	}
	return 0;
}

static int do_close(const struct json *command)
{
	const struct json *names = json_get(command, "names"), *name;
	int failed = 0;

	for (name = names ? names->first : NULL; name; name = name->next) {
		struct thing *thing = name->kind == JSON_TEXT ? find(name->text) : NULL;

		if (thing && destroy(thing))
			failed = -1;
	}
	while (member_count)
		close(members[--member_count]);
	return failed;
}

static const struct { const char *name; int (*run)(const struct json *command); } commands[] = {
	{ "hello", do_hello },
	{ "reg_mr", do_reg_mr },
	{ "write", do_write },
	{ "read", do_read },
	{ "create_cq", do_create_cq },
	{ "create_srq", do_create_srq },
	{ "modify_srq", do_modify_srq },
	{ "create_qp", do_create_qp },
	{ "connect", do_connect },
	{ "start_datagrams", do_start_datagrams },
	{ "modify_qp", do_modify_qp },
	{ "query_qp", do_query_qp },
	{ "create_ah", do_create_ah },
	{ "attach_mcast", do_attach_mcast },
	{ "detach_mcast", do_detach_mcast },
	{ "post_recv", do_post_recv },
	{ "post_send", do_post_send },
	{ "poll", do_poll },
	{ "events", do_events },
	{ "alloc_mw", do_alloc_mw },
	{ "bind_mw", do_bind_mw },
#ifdef RDMACM
	{ "cm_connect", do_cm_connect },
#endif
	{ "close", do_close },
};

static void execute(char *line)
{
	const struct json *command = json_parse(line);
	const char *name = text(command, "do");
	unsigned int i;

	answer_len = 0;
	for (i = 0; i < COUNT(commands); i++)
		if (name && !strcmp(commands[i].name, name))
			break;
	if (i == COUNT(commands))
		refuse(EOPNOTSUPP, "do: '%s'", name ? name : "");
	else
		commands[i].run(command);
	fprintf(out, "%s\n", answer_len ? answer : "{}");
	fflush(out);
}

/* The next line, without its end; NULL: there is none. It is valid until the next one is read. */
static char *next_line(int in)
{
	static char *bytes;
	static size_t begin, end, room;

	for (;;) {
		char *line = bytes + begin, *stop = begin < end ? memchr(line, '\n', end - begin) : NULL;
		ssize_t got;

		if (stop) {
			*stop = 0;
			begin = stop + 1 - bytes;
			return line;
		}
		if (begin) {
			memmove(bytes, line, end - begin);
			end -= begin;
			begin = 0;
		}
		if (end == room) {
			char *more = realloc(bytes, room += 1 << 16);

			if (!more)
				return NULL;
			bytes = more;
		}
		wait_for(in);
		got = read(in, bytes + end, room - end);
		if (got <= 0) {
			/* What has no end is no command; the next connection begins anew. */
			end = 0;
			return NULL;
		}
		end += got;
	}
}

/* Does what it is told until nobody tells it anything; what was made goes then. */
static void serve(int in)
{
	/* What depends on something else is made later and goes earlier. */
	static const enum kind order[] = { CALL, QP, AH, MW, SRQ, CQ, MR };
	char *line;

	while ((line = next_line(in)))
		execute(line);
	for (unsigned int k = 0; k < COUNT(order); k++)
		for (unsigned int i = 0; i < MAX_THINGS; i++)
			if (things[i].kind == order[k])
				destroy(&things[i]);
}

static int listen_on(int port)
{
	struct sockaddr_in6 address = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	int listener = socket(AF_INET6, SOCK_STREAM, 0), yes = 1, no = 0;

	if (listener < 0)
		return -1;
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 1))
		return -1;
	return listener;
}

static int open_device(const char *name)
{
	int count = 0;
	struct ibv_device **devices = ibv_get_device_list(&count);

	for (int i = 0; i < count && !context; i++)
		if (!name || !strcmp(name, ibv_get_device_name(devices[i])))
			context = ibv_open_device(devices[i]);
	if (devices)
		ibv_free_device_list(devices);
	if (!context) {
		fprintf(stderr, "agent: %s%s cannot be opened, of %d devices\n",
			name ? "device " : "the first device", name ? name : "", count);
		return -1;
	}
	pd = ibv_alloc_pd(context);
	if (!pd)
		perror("agent: ibv_alloc_pd");
	return pd ? 0 : -1;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "device", required_argument, NULL, 'd' },
		{ "listen", required_argument, NULL, 'l' },
		{ 0 },
	};
	const char *device = NULL;
	int port = -1, option, listener;

	while ((option = getopt_long(argc, argv, "d:l:", options, NULL)) != -1) {
		switch (option) {
		case 'd':
			device = optarg;
			break;
		case 'l':
			port = atoi(optarg);
			break;
		default:
			fprintf(stderr, "usage: %s [--device NAME] [--listen PORT]\n", argv[0]);
			return 2;
		}
	}
	if (open_device(device))
		return 1;
	out = stdout;
	if (port < 0) {
		serve(STDIN_FILENO);
		return 0;
	}
	listener = listen_on(port);
	if (listener < 0) {
		perror("agent: the TCP port");
		return 1;
	}
	printf("agent: ready on TCP port %d\n", port);
	fflush(stdout);
	for (;;) {
		int connection = accept(listener, NULL, NULL), yes = 1;

		if (connection < 0)
			continue;
		setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
		out = fdopen(dup(connection), "w");
		if (out) {
			serve(connection);
			fclose(out);
		}
		close(connection);
	}
}
