/* The program that scripts/slow/fuzz-init runs: a process that follows its script and records the signals that it gets.
 *   node LOG ID SCRIPT
 * Script, each number ending in a semicolon:
 *   F id(script)  forks a child with a script of its own      D id(script)  the same, orphaned at once
 *   s  setsid     g  a process group of its own               z  stops itself
 *   i n;  ignores signal n      h n;  records signal n
 *   e n;  at SIGTERM exits with n      a  at SIGTERM starts a session and stays
 *   c n;  at SIGTERM forks node n, which lives for a moment, and stays
 *   u  records that it is set up, and handles signals from now on   w n;  waits n ms              x n;  exits with n      k n;  ends itself by signal n
 * A line of the log: TIME_US ID WHAT NUMBER ("got" a signal of a process, "kernel" a signal of the kernel)
 *
 * The kernel sends HUP and CONT to an orphaned group with a stopped member (setpgid(2)). trainit does not cause that, so a
 * process continues unless its script lets HUP end it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int out, id, at_term, term_number, dies_of_hup;
static sigset_t from_outside;

static long long now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

static void note(const char *what, int number) {
    char line[96];
    int length = snprintf(line, sizeof line, "%lld %d %s %d\n", now_us(), id, what, number);
    if (write(out, line, (size_t)length) < 0) _exit(111);
}

static void wait_ms(int ms) {
    long long end = now_us() + ms * 1000LL, left;
    while ((left = end - now_us()) > 0) {
        struct timespec t = {left / 1000000, left % 1000000 * 1000};
        nanosleep(&t, NULL);
    }
}

static void set(int n, void (*handler)(int, siginfo_t *, void *));
static void on_signal(int n, siginfo_t *info, void *context);

/* A fork during which no signal is recorded for the wrong process. Signals are blocked in the new process until it is set up,
 * so none meets its parent's handlers. */
static int fork_as(int child) {
    sigset_t all, old;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &old);
    int pid = fork();
    if (pid == 0) {
        struct sigaction now;
        id = child;
        sigaction(SIGHUP, NULL, &now);
        if (now.sa_handler == SIG_DFL) {
            dies_of_hup = 1;
            set(SIGHUP, on_signal);
        }
        if (child >= 0) return pid;
    }
    sigprocmask(SIG_SETMASK, &old, NULL);
    return pid;
}

static void on_signal(int n, siginfo_t *info, void *context) {
    int of_kernel = info->si_code == SI_KERNEL;
    (void)context;
    note(of_kernel ? "kernel" : "got", n);
    if (n == SIGHUP && dies_of_hup && !of_kernel) _exit(128 + n);
    if (n != SIGTERM || !at_term) return;
    if (at_term == 'e') _exit(term_number);
    if (at_term == 'a') setsid();
    if (at_term == 'c') {
        sigset_t all;
        sigfillset(&all);
        int pid = fork();
        if (pid == 0) {
            sigprocmask(SIG_SETMASK, &all, NULL);
            wait_ms(30);
            _exit(0);
        }
    }
}

#ifdef __x86_64__
/* The return of a handler (rt_sigreturn), which the C library sets in sigaction(3). */
__attribute__((naked)) static void give_back(void) { __asm__ volatile("mov $15, %eax\n\tsyscall"); }
#define RESTORER 0x04000000UL, (unsigned long)give_back
#else
#define RESTORER 0, 0
#endif

#define IGNORE ((void (*)(int, siginfo_t *, void *))(void *)SIG_IGN)
#define DEFAULT ((void (*)(int, siginfo_t *, void *))(void *)SIG_DFL)

/* A direct system call, because the C library reserves signals 32 and 33. */
static void set(int n, void (*handler)(int, siginfo_t *, void *)) {
    if (n == SIGHUP && handler != on_signal) dies_of_hup = 0;
    if (n == 32 || n == 33) {
        struct { unsigned long handler, flags, restorer, mask; } action = {(unsigned long)handler, RESTORER, 0};
        action.flags |= SA_RESTART | SA_SIGINFO;
        syscall(SYS_rt_sigaction, n, &action, NULL, 8);
        return;
    }
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_RESTART | SA_SIGINFO};
    sigaction(n, &action, NULL);
}

static int number(const char **at) {
    int n = (int)strtol(*at, (char **)at, 10);
    if (**at == ';') ++*at;
    return n;
}

/* The end of the script in parentheses that begins here. */
static const char *past(const char *at) {
    for (int depth = 0;; at++) {
        if (*at == '(') depth++;
        if (*at == ')' && --depth == 0) return at + 1;
    }
}

static void run(const char *at) {
    int n;
    while (*at && *at != ')') {
        switch (*at++) {
        case 'F':
            n = number(&at);
            if (fork_as(n) == 0) {
                note("start", getpid());
                run(at + 1);
                _exit(0);
            }
            at = past(at);
            break;
        case 'D':
            n = number(&at);
            if (fork_as(-1) == 0) {
                if (fork_as(n) == 0) {
                    note("start", getpid());
                    run(at + 1);
                }
                _exit(0);
            }
            at = past(at);
            break;
        case 's': setsid(); break;
        case 'g': setpgid(0, 0); break;
        case 'z': raise(SIGSTOP); break;
        case 'i': set(number(&at), IGNORE); break;
        case 'h':
            n = number(&at);
            if (n == SIGHUP) dies_of_hup = 0;
            set(n, on_signal);
            break;
        case 'e': case 'c': at_term = at[-1]; term_number = number(&at); set(SIGTERM, on_signal); break;
        case 'a': at_term = 'a'; set(SIGTERM, on_signal); break;
        case 'u':
            note("up", 0);
            sigprocmask(SIG_SETMASK, &from_outside, NULL);
            break;
        case 'w': wait_ms(number(&at)); break;
        case 'x': n = number(&at); note("exit", n); _exit(n);
        case 'k': n = number(&at); note("die", n); set(n, DEFAULT); kill(getpid(), n); wait_ms(60000); break;
        default: _exit(112);
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    out = open(argv[1], O_WRONLY | O_APPEND);
    if (out < 0) return 3;
    id = atoi(argv[2]);
    sigprocmask(SIG_SETMASK, NULL, &from_outside);
    note("start", getpid());
    run(argv[3]);
    return 0;
}
