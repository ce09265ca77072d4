#include "cm.h"

#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdlib.h>

#define STEP_TIMEOUT_MS 2000

struct call {
	struct rdma_cm_id *id;
	bool ended;  /* the program has no use for it any more */
	bool over;   /* the peer, or the connection manager, has ended it */
};

static struct rdma_event_channel *channel;

static void release(struct call *call)
{
	if (call->id->qp)
		rdma_destroy_qp(call->id);
	rdma_destroy_id(call->id);
	free(call);
}

static void take(struct rdma_cm_event *event)
{
	struct call *call = event->id->context;
	enum rdma_cm_event_type type = event->event;

	rdma_ack_cm_event(event);
	if (type != RDMA_CM_EVENT_DISCONNECTED && type != RDMA_CM_EVENT_REJECTED &&
	    type != RDMA_CM_EVENT_UNREACHABLE && type != RDMA_CM_EVENT_CONNECT_ERROR)
		return;
	call->over = true;
	if (call->ended)
		release(call);
}

/* Waits for an event of a new connection; other connections go on meanwhile. */
static int await(struct call *call, enum rdma_cm_event_type wanted)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	while (poll(&fd, 1, STEP_TIMEOUT_MS) > 0) {
		enum rdma_cm_event_type type;
		int status;

		if (rdma_get_cm_event(channel, &event))
			return -1;
		if (event->id->context != call) {
			take(event);
			continue;
		}
		type = event->event;
		status = event->status;
		rdma_ack_cm_event(event);
		if (type == wanted)
			return 0;
		errno = status < 0 ? -status : EHOSTUNREACH;
		return -1;
	}
	errno = ETIMEDOUT;
	return -1;
}

static const char *go(struct call *call, struct sockaddr *to)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1,
					 .retry_count = 7, .rnr_retry_count = 7 };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 1, .max_recv_wr = 1,
						  .max_send_sge = 1, .max_recv_sge = 1 } };

	if (rdma_resolve_addr(call->id, NULL, to, STEP_TIMEOUT_MS) ||
	    await(call, RDMA_CM_EVENT_ADDR_RESOLVED))
		return "rdma_resolve_addr";
	if (rdma_resolve_route(call->id, STEP_TIMEOUT_MS) ||
	    await(call, RDMA_CM_EVENT_ROUTE_RESOLVED))
		return "rdma_resolve_route";
	if (rdma_create_qp(call->id, NULL, &init))
		return "rdma_create_qp";
	return rdma_connect(call->id, &param) ? "rdma_connect" : NULL;
}

struct call *call_begin(struct sockaddr *to, const char **verb)
{
	struct call *call = calloc(1, sizeof(*call));
	int error;

	*verb = "rdma_create_id";
	if (!channel)
		channel = rdma_create_event_channel();
	if (!call || !channel || rdma_create_id(channel, &call->id, call, RDMA_PS_TCP)) {
		free(call);
		return NULL;
	}
	*verb = go(call, to);
	if (!*verb)
		return call;
	error = errno;
	release(call);
	errno = error;
	return NULL;
}

void call_end(struct call *call)
{
	call->ended = true;
	/* One that is not connected is not disconnected, but given up. */
	if (call->over || rdma_disconnect(call->id))
		release(call);
}

int calls_fd(void)
{
	return channel ? channel->fd : -1;
}

void calls_follow(void)
{
	struct pollfd fd = { .fd = calls_fd(), .events = POLLIN };
	struct rdma_cm_event *event;

	while (fd.fd >= 0 && poll(&fd, 1, 0) > 0 && !rdma_get_cm_event(channel, &event))
		take(event);
}
