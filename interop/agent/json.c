#include "json.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define MAX_VALUES 65536
#define MAX_DEPTH 16

static struct json values[MAX_VALUES];
static unsigned int used;

static char *skip_space(char *at)
{
	while (isspace((unsigned char)*at))
		at++;
	return at;
}

/* A text without its quotes, in place. Commands need no \u beyond ASCII. */
static char *parse_text(char **at)
{
	char *begin = ++*at, *in = begin, *out = begin;

	while (*in && *in != '"') {
		if (*in == '\\' && in[1]) {
			in++;
			*in = *in == 'n' ? '\n' : *in == 't' ? '\t' : *in;
		}
		*out++ = *in++;
	}
	if (!*in)
		return NULL;
	*at = in + 1;
	*out = 0;
	return begin;
}

static struct json *parse_value(char **at, int depth);

/* The members of a list or an object, up to its end. */
static int parse_members(char **at, struct json *of, char end, int depth)
{
	struct json **last = &of->first;

	*at = skip_space(*at + 1);
	while (**at != end) {
		char *key = NULL;

		if (of->kind == JSON_OBJECT) {
			if (**at != '"' || !(key = parse_text(at)))
				return -1;
			*at = skip_space(*at);
			if (**at != ':')
				return -1;
			*at = skip_space(*at + 1);
		}
		*last = parse_value(at, depth + 1);
		if (!*last)
			return -1;
		(*last)->key = key;
		last = &(*last)->next;
		*at = skip_space(*at);
		if (**at == ',')
			*at = skip_space(*at + 1);
		else if (**at != end)
			return -1;
	}
	++*at;
	return 0;
}

static struct json *parse_value(char **at, int depth)
{
	static const struct { const char *word; enum json_kind kind; double number; } words[] = {
		{ "null", JSON_NULL, 0 }, { "true", JSON_BOOL, 1 }, { "false", JSON_BOOL, 0 },
	};
	struct json *value;
	char *end;

	if (used == MAX_VALUES || depth == MAX_DEPTH)
		return NULL;
	value = &values[used++];
	memset(value, 0, sizeof(*value));
	*at = skip_space(*at);
	switch (**at) {
	case '{':
		value->kind = JSON_OBJECT;
		return parse_members(at, value, '}', depth) ? NULL : value;
	case '[':
		value->kind = JSON_LIST;
		return parse_members(at, value, ']', depth) ? NULL : value;
	case '"':
		value->kind = JSON_TEXT;
		value->text = parse_text(at);
		return value->text ? value : NULL;
	}
	for (unsigned int i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		size_t len = strlen(words[i].word);

		if (!strncmp(*at, words[i].word, len)) {
			value->kind = words[i].kind;
			value->number = words[i].number;
			value->integer = (uint64_t)words[i].number;
			*at += len;
			return value;
		}
	}
	value->kind = JSON_NUMBER;
	value->number = strtod(*at, &end);
	value->integer = strtoull(*at, NULL, 10);
	if (end == *at)
		return NULL;
	*at = end;
	return value;
}

struct json *json_parse(char *line)
{
	used = 0;
	return parse_value(&line, 0);
}

const struct json *json_get(const struct json *object, const char *key)
{
	const struct json *member;

	if (!object || object->kind != JSON_OBJECT)
		return NULL;
	for (member = object->first; member; member = member->next)
		if (!strcmp(member->key, key))
			return member;
	return NULL;
}
