/* Finds the secrets of a command line.  See secrets.h; docs/sharing.md describes the rules. */
#include "secrets.h"

#include <stdbool.h>
#include <string.h>

static const char HIDDEN[] = "\xe2\x80\xa6"; /* … */

/* Parts of names with secret values; a test holds docs/sharing.md equal to the list. */
static const char *const SECRET[] = {"key",        "token",     "secret",     "passw",
                                     "passphrase", "pwd",       "credential", "auth",
                                     "cookie",     "signature", "x-amz-",     "x-goog-"};
/* Harmless words with a part from SECRET. */
static const char *const HARMLESS[] = {"tokeni",   "keypoint", "keyframe", "keyword",
                                       "keyboard", "monkey",   "author"};
static const char *const WHOLE[] = {"sig", "pass", "pw"};
static const char *const WHOLE_HARMLESS[] = {"pwd", "oldpwd"};
/* Options with a secret value USER:PASSWORD, as of curl. */
static const char *const USERS[] = {"u", "user", "proxy-user"};
/* How tokens of well-known services begin, and their least length: the tokens need no name. */
static const struct {
    const char *begin;
    size_t least;
} TOKENS[] = {{"ghp_", 30},        {"gho_", 30},  {"ghu_", 30},  {"ghs_", 30},
              {"github_pat_", 40}, {"hf_", 30},   {"sk-", 40},   {"glpat-", 20},
              {"xoxb-", 30},       {"xoxp-", 30}, {"AKIA", 20},  {"ASIA", 20},
              {"AIza", 35},        {"npm_", 36},  {"pypi-", 40}, {"eyJ", 40}};
/* How the text of a private key begins, up to the kind of the key. */
static const char PRIVATE[] = "-----begin ";
static const char *const SCHEMES[] = {"bearer ", "basic ", "token "};

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* Where the output goes. */
struct out {
    char *next, *end;
};

static void put(struct out *out, const char *text, size_t length)
{
    if (length > (size_t)(out->end - out->next))
        length = (size_t)(out->end - out->next);
    memcpy(out->next, text, length);
    out->next += length;
}

static void hide(struct out *out)
{
    if ((size_t)(out->end - out->next) >= sizeof HIDDEN - 1)
        put(out, HIDDEN, sizeof HIDDEN - 1);
}

static char lower(char c)
{
    if (c == '_')
        return '-';
    return c >= 'A' && c <= 'Z' ? (char)(c + 'a' - 'A') : c;
}

static bool is_of_name(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' ||
           c == '-' || c == '.';
}

static bool begins(const char *text, size_t left, const char *with, size_t length)
{
    size_t i;

    if (!length || length > left)
        return false;
    for (i = 0; i < length; i++)
        if (lower(text[i]) != lower(with[i]))
            return false;
    return true;
}

static size_t begins_any(const char *text, size_t left, const char *const *list, size_t n)
{
    size_t i;

    for (i = 0; i < n; i++)
        if (begins(text, left, list[i], strlen(list[i])))
            return strlen(list[i]);
    return 0;
}

static bool is_number(const char *text, size_t length)
{
    size_t i;

    for (i = 0; i < length; i++)
        if (!(text[i] >= '0' && text[i] <= '9') && !strchr(".,eEkKmMbB+-_", text[i]))
            return false;
    return length && text[0] >= '0' && text[0] <= '9';
}

static bool is_more(const char *text, size_t left, const char *more)
{
    while (more && *more) {
        size_t length = strcspn(more, ",");

        if (begins(text, left, more, length))
            return true;
        more += length + (more[length] == ',');
    }
    return false;
}

/* USER:PASSWORD; the numbers of a user and a group are none. */
static bool is_pair(const char *value, size_t length)
{
    size_t i, colons = 0, others = 0;

    for (i = 0; i < length; i++) {
        colons += value[i] == ':';
        others += value[i] != ':' && !(value[i] >= '0' && value[i] <= '9');
    }
    return colons && others && value[0] != ':' && value[length - 1] != ':';
}

static bool is_token(const char *word, size_t length)
{
    size_t i;

    for (i = 0; i < COUNT(TOKENS); i++)
        if (length >= TOKENS[i].least && !memcmp(word, TOKENS[i].begin, strlen(TOKENS[i].begin)))
            return true;
    return false;
}

static bool is_one_of(const char *name, size_t length, const char *const *words, size_t n)
{
    size_t i;

    for (i = 0; i < n; i++)
        if (length == strlen(words[i]) && begins(name, length, words[i], length))
            return true;
    return false;
}

/* Whether the value of a name is a secret; length 0 of value: not known yet. */
static bool is_secret(const char *name, size_t length, const char *value, size_t value_length,
                      const char *more)
{
    size_t i, skipped;

    while (length && *name == '-') {
        name++;
        length--;
    }
    if (is_one_of(name, length, WHOLE_HARMLESS, COUNT(WHOLE_HARMLESS)))
        return false;
    if (is_one_of(name, length, USERS, COUNT(USERS)) && is_pair(value, value_length))
        return true;
    if (is_one_of(name, length, WHOLE, COUNT(WHOLE)))
        return true;
    for (i = 0; i < length; i++) {
        if (is_more(name + i, length - i, more))
            return true;
        skipped = begins(name + i, length - i, "authoriz", 8)
                      ? 0
                      : begins_any(name + i, length - i, HARMLESS, COUNT(HARMLESS));
        if (!skipped && begins(name + i, length - i, "tokens", 6) && is_number(value, value_length))
            skipped = 6; /* a number of tokens, not a token */
        if (skipped)
            i += skipped - 1;
        else if (begins_any(name + i, length - i, SECRET, COUNT(SECRET)))
            return true;
    }
    return false;
}

/* Return the end of a value inside a word.  quote: the letter before the value, '"' or '\'' where
 * an equal letter ends the value. */
static size_t value_end(const char *word, size_t from, size_t length, char quote)
{
    size_t i = from + begins_any(word + from, length - from, SCHEMES, COUNT(SCHEMES));

    if (quote == '"' || quote == '\'')
        for (; i < length; i++) {
            if (word[i] == quote && word[i - 1] != '\\')
                return i;
        }
    i = from + begins_any(word + from, length - from, SCHEMES, COUNT(SCHEMES));
    while (i < length && !strchr("&;,\"' \t\n})]#", word[i]))
        i++;
    return i;
}

/* Past `://`: hide the part before the last @ of the host's part. */
static size_t hide_user(struct out *out, const char *word, size_t i, size_t length)
{
    size_t at = 0, colon = 0, j;

    for (j = i; j < length && !strchr("/?# \"'", word[j]); j++) {
        if (word[j] == '@')
            at = j;
        else if (word[j] == ':')
            colon = j;
    }
    /* A password with a letter of the list: the text before is not a host with a port. */
    if (!at && colon && j < length && strchr("/?#", word[j]) &&
        !is_number(word + colon + 1, j - colon - 1))
        for (; j < length && !strchr(" \"'", word[j]); j++)
            if (word[j] == '@') {
                at = j;
                break;
            }
    if (!at)
        return i;
    hide(out);
    return at;
}

static bool is_quote(const char *word, size_t i, size_t length)
{
    return i < length && (word[i] == '"' || word[i] == '\'');
}

static size_t past_spaces(const char *word, size_t i, size_t length)
{
    while (i < length && word[i] == ' ')
        i++;
    return i;
}

/* Return the place of the sign between a name, ending at j, and its value; 0: no value follows. */
static size_t find_separator(const char *word, size_t j, size_t length, bool is_option)
{
    size_t k = j, next;

    if (is_quote(word, k, length))
        k++;
    if (k > j && k < length && word[k] == ']') /* d['token'] = 'VALUE' */
        k++;
    next = past_spaces(word, k, length);
    if (!is_option && next < length && (word[next] == '=' || word[next] == ':'))
        k = next;
    if (k >= length)
        return 0;
    switch (word[k]) {
    case ',': /* ('token', 'VALUE') */
        return k > j && is_quote(word, past_spaces(word, k + 1, length), length) ? k : 0;
    case '=': return k;
    case ':': return k + 1 < length && word[k + 1] == '/' ? 0 : k;
    case ' ': return is_option ? k : 0;
    default: return 0;
    }
}

/* After the name word[i..j): hide the value of a secret; return where the scan goes on. */
static size_t hide_value(struct out *out, const char *word, size_t i, size_t j, size_t length,
                         const char *more)
{
    size_t separator = find_separator(word, j, length, word[i] == '-');
    size_t value, end;
    char quote = 0;

    if (!separator)
        return 0;
    value = past_spaces(word, separator + 1, length);
    if (is_quote(word, value, length))
        quote = word[value++];
    if (word[separator] == ' ' && (value >= length || word[value] == '-'))
        return 0;
    end =
        i == 0 && word[separator] != ' ' && !quote ? length : value_end(word, value, length, quote);
    if (!is_secret(word + i, j - i, word + value, end - value, more))
        return 0;
    put(out, word + i, value - i);
    hide(out);
    return end;
}

/* Returns whether the whole word is an option's name, with the next word as its secret value. */
static bool hide_word(struct out *out, const char *word, size_t length, const char *more)
{
    size_t i = 0, j, after;

    while (i < length) {
        if (begins(word + i, length - i, PRIVATE, sizeof PRIVATE - 1)) {
            hide(out);
            return false;
        }
        for (j = i; j < length && is_of_name(word[j]); j++)
            ;
        if (j > i && is_token(word + i, j - i)) {
            hide(out);
            i = j;
        } else if (j > i) {
            if (j == length) {
                put(out, word + i, j - i);
                return i == 0 && word[0] == '-';
            }
            after = hide_value(out, word, i, j, length, more);
            if (!after) {
                put(out, word + i, j - i);
                after = j;
            }
            i = after;
        } else if (begins(word + i, length - i, "://", 3)) {
            put(out, word + i, 3);
            i = hide_user(out, word, i + 3, length);
        } else {
            put(out, word + i++, 1);
        }
    }
    return false;
}

size_t secrets_hide(const char *words, size_t bytes, char *out, size_t room, const char *more)
{
    struct out to = {out, out + room};
    const char *before = NULL;
    size_t length, before_length = 0;

    while (bytes) {
        length = strnlen(words, bytes);
        if (before && length && !(words[0] == '-' && length > 1 && words[1] == '-') &&
            is_secret(before, before_length, words, length, more)) {
            hide(&to);
            before = NULL;
        } else {
            before = hide_word(&to, words, length, more) ? words : NULL;
            before_length = length;
        }
        if (length == bytes)
            break;
        put(&to, "", 1);
        words += length + 1;
        bytes -= length + 1;
    }
    return (size_t)(to.next - out);
}
