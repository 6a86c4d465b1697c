#!/usr/bin/env bash
# The rules of language that a program can check: words that documents and code
# do not use, words that no comment begins with, and how long the documents may
# be together.
# usage: words.sh SOURCE_DIR
#
# What does not count: tables of measured figures and the table of rooms, which
# tests/layering.py keeps, between <!-- NAME --> and <!-- /NAME -->, and
# everything under docs/evaluation/.
set -euo pipefail
cd "$1"

readonly MAX_WORDS=18000
# Whole words; each with its forms.
readonly BANNED='beside|giants?|leanest|mend(s|ed|er|ers|ing)?'

status=0

# Prints every line of the given files that has a banned word.
banned_in() {
  grep -nEiw "$BANNED" "$@" || true
}

check_documents() {
  local found
  mapfile -t documents < <(find docs -name '*.md' | sort)
  found=$(banned_in README.md CONTRIBUTING.md "${documents[@]}")
  if [ -n "$found" ]; then
    printf 'words that documents do not use:\n%s\n' "$found"
    status=1
  fi
}

check_length() {
  local words
  words=$(find docs -name '*.md' -not -path 'docs/evaluation/*' -print0 |
    sort -z | xargs -0 cat |
    sed -E '/^<!-- [a-z_]+ -->$/,/^<!-- \/[a-z_]+ -->$/{/^\|/d}' | wc -w)
  echo "docs: $words words of $MAX_WORDS"
  if [ "$words" -gt "$MAX_WORDS" ]; then
    status=1
  fi
}

code_files() {
  git ls-files '*.h' '*.cc' '*.proto' '*.py' '*.sh' '*.cmake' \
    '*CMakeLists.txt' | grep -v '^tests/words.sh$'
}

# The same words in the code, its comments and its texts.
check_code() {
  local found
  mapfile -t files < <(code_files)
  found=$(banned_in "${files[@]}")
  if [ -n "$found" ]; then
    printf 'words that code does not use:\n%s\n' "$found"
    status=1
  fi
}

# Comments that begin with a word after which readers have to guess the subject.
check_comments() {
  local found
  mapfile -t files < <(code_files)
  found=$(awk '
    FNR == 1 { inside = 0 }
    {
      text = ""
      comment = match($0, /^[ \t]*(\/\/+|#) ?/)
      if (comment) {
        if (!inside) text = substr($0, RLENGTH + 1)
      } else if (match($0, /[^:"]\/\/ +/)) {
        text = substr($0, RSTART + RLENGTH)
      } else if (match($0, /^[ \t]*"""/)) {
        text = substr($0, RSTART + RLENGTH)
      }
      if (text ~ /^(What|Of|By|As if)([^a-zA-Z]|$)/) {
        print FILENAME ":" FNR ": " text
      }
      inside = comment
    }' "${files[@]}")
  if [ -n "$found" ]; then
    printf 'comments that begin with What, Of, By or As if:\n%s\n' "$found"
    status=1
  fi
}

check_documents
check_length
check_code
check_comments
exit "$status"
