#!/bin/sh
# hey posts one image repeatedly: deploy/loadtest/hey.sh URL IMAGE [hey's own flags]
#     deploy/loadtest/hey.sh http://127.0.0.1:8000 models/digits/samples/3_ink_on_paper.jpg -c 8 -z 10s
set -eu
usage="usage: $0 URL IMAGE [hey's flags, such as -c 8 -z 10s]"
url=${1:?$usage}
image=${2:?$usage}
shift 2
# The server recognises the image by its first bytes.
exec hey -m POST -T application/octet-stream -D "$image" "$@" "${url%/}/v1/classify"
