# Leads a process group and ends it when the other end of standard input is gone, whatever killed its holder:
# sh -c "$this" <name> <grace in seconds>
trap '' HUP INT TERM
# The builtin read, not cat: nothing else then holds the pipe.
while read -r line; do :; done
kill -TERM 0
sleep "$1"
kill -KILL 0
