/* Connections that the agent makes by the connection manager. */
#ifndef CM_H
#define CM_H

#include <sys/socket.h>

struct call;

/* Connects to a port of the port space of TCP, as far as that goes without the peer's answer. NULL:
 * `verb` has failed, with errno. */
struct call *call_begin(struct sockaddr *to, const char **verb);

/* Disconnects. What is left goes when the peer has answered, or has not for long enough. */
void call_end(struct call *call);

/* What can be read from when something has happened to connections; -1: there are none yet. */
int calls_fd(void);

/* Takes in what has happened. */
void calls_follow(void);

#endif
