/* The children that scripts/benches/init and gpu-watch start under an init. They do as little as possible.
 *   child      prints "ready", waits for SIGTERM, prints the time (CLOCK_MONOTONIC, ns), exits with 0
  *   storm N    creates N orphans that end at once, and ends after the last one was created
  *   bare CMD   a minimal init: starts CMD and reaps every child until CMD ends
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void on_term(int signal) {
    struct timespec now;
    char text[32];
    (void)signal;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int length = snprintf(text, sizeof text, "%lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
    if (write(1, text, (size_t)length) < 0) _exit(1);
    _exit(0);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "child")) {
        signal(SIGTERM, on_term);
        if (write(1, "ready\n", 6) < 0) return 1;
        for (;;) pause();
    }
    if (argc > 2 && !strcmp(argv[1], "storm")) {
        for (int n = atoi(argv[2]); n > 0; n--) {
            pid_t middle = fork();
            if (middle < 0) return 1;
            if (middle == 0) {
                if (fork() < 0) _exit(1);
                _exit(0);
            }
            if (waitpid(middle, NULL, 0) < 0) return 1;
        }
        return 0;
    }
    if (argc > 2 && !strcmp(argv[1], "bare")) {
        pid_t command = fork(), ended;
        if (command == 0) {
            execvp(argv[2], argv + 2);
            _exit(127);
        }
        while ((ended = waitpid(-1, NULL, 0)) > 0)
            if (ended == command) return 0;
    }
    return 2;
}
