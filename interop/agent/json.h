/* As much JSON as one line of a command needs. A value is valid until the next line is parsed. */
#ifndef JSON_H
#define JSON_H

#include <stdint.h>

enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_TEXT, JSON_LIST, JSON_OBJECT };

struct json {
	enum json_kind kind;
	double number;          /* of a number; 0 or 1 of a bool */
	uint64_t integer;       /* of a number without a fraction, all 64 bits */
	char *text;             /* of a text */
	char *key;              /* of a member of an object */
	struct json *first;     /* of a list or an object */
	struct json *next;      /* after this one in the same list or object */
};

/* Parses a line, which is changed. NULL: it is not JSON, or too deep or too long. */
struct json *json_parse(char *line);

/* A member of an object; NULL if there is none. */
const struct json *json_get(const struct json *object, const char *key);

#endif
