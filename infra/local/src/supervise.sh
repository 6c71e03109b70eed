# Runs a server that must not outlive the one who started it: sh -c "$this" <name> <grace in seconds> <server> [args].
# Standard input is a pipe whose other end only the parent holds: its end is the parent's end, whatever killed it.
# Standard output gets one line, the server's process id. Leads a process group of its own.
grace=$1
shift
exec 3<&0 4>&1 1>&2

"$@" </dev/null 3<&- 4>&- &
server=$!

# The builtin read, not cat: killing the guard then leaves nothing behind that still holds the pipe.
(
    exec 4>&-
    while read -r line <&3; do :; done
    kill -TERM "$server"
    sleep "$grace"
    kill -KILL "$server"
) &

echo "$server" >&4
exec </dev/null 3<&- 4>&-

wait "$server"
status=$?

# The server is gone: end the guard, and its sleep, before the process id can mean somebody else.
trap '' TERM
kill -TERM 0
exit "$status"
