/* Loaded into a broker with LD_PRELOAD: the process stops itself (SIGSTOP) right before it puts assignment.json into
 * place, once, if the file that KAAS_PAUSE_BEFORE_RENAME names exists. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char NAME[] = "/assignment.json";

int rename(const char *from, const char *to) {
  static int (*original)(const char *, const char *);
  if (original == NULL) original = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
  const char *trigger = getenv("KAAS_PAUSE_BEFORE_RENAME");
  size_t length = strlen(to), suffix = sizeof NAME - 1;
  int assignment = length >= suffix && strcmp(to + length - suffix, NAME) == 0;
  /* Who removes the file is the only one that stops. A signal to the own thread is taken before raise returns. */
  if (trigger != NULL && assignment && unlink(trigger) == 0) raise(SIGSTOP);
  return original(from, to);
}
