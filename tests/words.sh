#!/usr/bin/env bash
# The rules of language that a program can check: words that documents do not
# use, and how long the documents may be together.
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

# The same words in comments of the code. Not called yet: the code still has
# them; to be called when it has not.
check_comments() {
  local found
  found=$(git ls-files '*.h' '*.cc' | xargs grep -nE '//' |
    sed -E 's#^([^:]+:[0-9]+):.*//#\1: //#' | grep -Eiw "$BANNED" || true)
  if [ -n "$found" ]; then
    printf 'words that comments do not use:\n%s\n' "$found"
    status=1
  fi
}

check_documents
check_length
exit "$status"
