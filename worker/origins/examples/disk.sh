#!/bin/bash
# Prints how full the disk of a folder is. Exit code 64 refuses the arguments.
read -r arguments
folder=$(sed -n 's/.*"folder":"\([^"]*\)".*/\1/p' <<<"$arguments")
if [ ! -d "$folder" ]; then
    echo "there is no folder $folder" >&2
    exit 64
fi
df -h "$folder"
