# What must hold for weftd under systemd. Every check_* function is one step: it runs in a subshell, starts from whatever
# the step before left and leaves the service running with the good configuration. Sourced by run.
# shellcheck shell=bash

# --- the service, seen from outside -----------------------------------------------------------------------------------

property() { inside systemctl show weftd --value -p "$1"; }
expect_property() { local got; got=$(property "$1"); [ "$got" = "$2" ] || fail "$1: expected $2, got $got"; }
state_is() { [ "$(property ActiveState)" = "$1" ]; }
pids_of() { inside sh -c 'for p in /proc/[0-9]*; do [ "$(cat $p/comm 2>/dev/null)" = '"$1"' ] && echo ${p#/proc/}; done; true'; }
# Whatever its name: weft's user has no other processes.
pids_of_user() { inside sh -c 'for p in /proc/[0-9]*; do [ "$(stat -c %U $p 2>/dev/null)" = weft ] && echo ${p#/proc/}; done; true'; }
nothing_left() { [ -z "$(pids_of_user)" ]; }
signal() { inside sh -c "kill -$1 $2"; }
journal_has() { inside journalctl -q --no-pager -o cat -u weftd --since "$STEP_START" | grep -qE -- "$1"; }
healthy() { inside curl -sf --max-time 5 -o /dev/null "$URL/health"; }
main_pid_changed() { local now; now=$(property MainPID); [ "$now" != 0 ] && [ "$now" != "$1" ]; }
fed_after() { [ "$(property WatchdogTimestampMonotonic)" -gt "$1" ]; }
refuses_clients() { ! inside curl -s --max-time 2 -o /dev/null "$URL/health"; }
mark() { STEP_START=$(inside date '+%Y-%m-%d %H:%M:%S'); }

start_service() { inside timeout 60 systemctl start weftd || fail "systemctl start weftd failed"; }
# A stop and start that always ends with the good configuration, whatever was there before.
fresh_service() {
  inside systemctl stop weftd
  inside systemctl reset-failed weftd 2>/dev/null
  write_config
  start_service
}

# write_config [MODEL_DIR] [EXTRA_LINES]: one deployment; the extra lines go before it.
write_config() {
  inside sh -c 'cat >/etc/weft/weft.toml' <<EOF
[daemon]
listen = ["127.0.0.1:8000"]
drain_timeout = "${DRAIN:-200s}"
${2:-}
[[deployment]]
name = "micro-k3"
model = "${1:-$MODEL}"
memory = "256MiB"
threads = 2
EOF
}

# drop_in LINES: service settings for the next starts; empty removes them.
drop_in() {
  local dir=/run/systemd/system/weftd.service.d
  if [ -n "$1" ]; then
    printf '[Service]\n%s\n' "$1" | inside sh -c "mkdir -p $dir && cat >$dir/test.conf"
  else
    inside rm -rf "$dir"
  fi
  inside systemctl daemon-reload
}

# --- clients ----------------------------------------------------------------------------------------------------------

ask() {
  local answer
  answer=$(inside curl -s --max-time 60 "$URL/v1/chat/completions" -d \
    '{"model":"micro-k3","temperature":0,"messages":[{"role":"user","content":"What is 38 + 47?"}]}')
  grep -q 85 <<<"$answer" || fail "expected an answer with 85, got: ${answer:0:300}"
}

# open_stream FILE TOKENS: starts a streaming chat of that many tokens, returns when the first ones have come.
open_stream() {
  : >"$1"
  inside curl -sN --max-time 240 "$URL/v1/chat/completions" -d '{"model":"micro-k3","stream":true,"ignore_eos":true,
    "max_tokens":'"$2"',"messages":[{"role":"user","content":"Count to 20."}]}' >"$1" 2>&1 9>&- &
  wait_until 30 grep -q reasoning_content "$1" || fail "no tokens came: $(head -c 300 "$1")"
}
stream_open() { ! grep -qE 'data: \[DONE\]|"error"' "$1"; }
last_events() { grep '^data' "$1" | tail -2; }

# Holds the worker with SIGSTOP: nothing can end before it goes on.
freeze_worker() {
  WORKER=$(pids_of weft-worker)
  [ -n "$WORKER" ] || fail "no worker runs"
  signal STOP "$WORKER" || fail "cannot stop worker $WORKER"
}

# open_frozen_stream FILE: a stream that is held in its middle and will end by itself soon after the worker goes on.
# How many tokens that takes depends on the machine, so the length is found by trying.
open_frozen_stream() {
  local tokens
  for tokens in 250 500 1000 2000 4000 8000; do
    open_stream "$1" $tokens
    freeze_worker
    stream_open "$1" && return 0
    signal CONT "$WORKER"
    wait
  done
  fail "a stream of $tokens tokens was over before its worker could be held"
}

# --- 1: installation and start ----------------------------------------------------------------------------------------

check_users_and_directories() {
  inside cp -r --no-preserve=ownership /stage/usr /
  inside systemd-sysusers || fail "systemd-sysusers failed"
  # The exit status also counts the container's own lines; what matters is checked below.
  inside systemd-tmpfiles --create
  inside systemctl daemon-reload
  local got
  got=$(inside getent passwd weft) || fail "no user weft"
  grep -q ':/var/lib/weft:/usr/sbin/nologin$' <<<"$got" || fail "user weft: expected its home in /var/lib/weft and no shell, got $got"
  local want
  for want in "/etc/weft root:root 755" "/var/lib/weft weft:weft 750" "/var/lib/weft/models weft:weft 755" "/etc/weft/weft.toml root:root 644"; do
    got=$(inside stat -c '%n %U:%G %a' "${want%% *}")
    [ "$got" = "$want" ] || fail "expected $want, got $got"
  done
}

check_example_config_starts() {
  start_service
  expect_property ActiveState active
  inside systemctl stop weftd || fail "systemctl stop failed"
}

check_start() {
  inside cp -r /stage/models/micro-k3 /var/lib/weft/models/
  write_config
  start_service
  # Type=notify: the moment start returns, the model answers.
  healthy || fail "systemctl start came back before the model was ready"
  expect_property ActiveState active
  expect_property Result success
  ask
}

# Starts the service and holds its worker (WORKER) with SIGSTOP while it loads. Loading is fast: up to five tries.
hold_loading() {
  for _ in 1 2 3 4 5; do
    inside systemctl stop weftd
    inside systemctl start --no-block weftd
    WORKER=$(inside timeout 20 sh -c 'while :; do for p in /proc/[0-9]*; do
      read -r name <$p/comm && [ "$name" = weft-worker ] && kill -STOP ${p#/proc/} && echo ${p#/proc/} && exit
    done; done 2>/dev/null')
    [ -n "$WORKER" ] || fail "no worker came up"
    state_is activating && return 0
    signal CONT "$WORKER"
  done
  fail "five starts, and loading was always faster than this test"
}

check_active_means_ready() {
  hold_loading
  ! healthy || fail "/health is fine while the model loads"
  expect_property SubState start
  property StatusText | grep -qE '^micro-k3: (starting|loading)' || fail "the status text is: $(property StatusText)"
  signal CONT "$WORKER"
  wait_until 30 state_is active || fail "not active after loading went on"
  healthy || fail "active but not healthy"
}

check_status_text() {
  expect_property StatusText "serving 1 model(s)"
  inside systemctl status --no-pager weftd | grep -q 'Status: "serving 1 model(s)"' || fail "systemctl status does not show the text"
}

check_user_and_sandbox() {
  local pid
  for pid in $(property MainPID) $(pids_of weft-worker); do
    [ "$(inside stat -c %U:%G "/proc/$pid")" = weft:weft ] || fail "process $pid runs as $(inside stat -c %U:%G "/proc/$pid")"
    local status; status=$(inside cat "/proc/$pid/status")
    grep -qE '^CapEff:\s+0+$' <<<"$status" && grep -qE '^CapBnd:\s+0+$' <<<"$status" || fail "process $pid has capabilities"
    grep -qE '^NoNewPrivs:\s+1$' <<<"$status" || fail "process $pid may gain privileges"
    grep -qE '^Seccomp:\s+2$' <<<"$status" || fail "process $pid has no system call filter"
  done
}

check_weftctl() {
  local got
  got=$(inside weftctl status) || fail "weftctl status: $got"
  grep -q micro-k3 <<<"$got" || fail "weftctl status does not know the deployment: $got"
  [ "$(inside stat -c '%U:%G %a' /run/weft/weft.sock)" = "weft:weft 660" ] || fail "socket: $(inside stat -c '%U:%G %a' /run/weft/weft.sock)"
  ! inside setpriv --reuid nobody --regid nogroup --clear-groups weftctl status >/dev/null 2>&1 || fail "nobody may use the control socket"
}

# --- 2, 3: streams, stop ----------------------------------------------------------------------------------------------

check_chat_streams() {
  open_stream "$WORK/chat" 50
  wait
  grep -q '^data: \[DONE\]$' "$WORK/chat" || fail "the stream has no end: $(last_events "$WORK/chat")"
  [ "$(grep -c '^data: {' "$WORK/chat")" -ge 3 ] || fail "expected several events, got $(grep -c '^data: {' "$WORK/chat")"
}

check_stop_lets_streams_finish() {
  open_frozen_stream "$WORK/s1"
  inside systemctl stop --no-block weftd
  wait_until 20 state_is deactivating || fail "the unit is not stopping"
  wait_until 20 refuses_clients || fail "still accepts new connections"
  stream_open "$WORK/s1" || fail "the stream ended although its worker stood still: $(last_events "$WORK/s1")"
  signal CONT "$WORKER"
  wait_until 180 state_is inactive || fail "the unit did not stop"
  wait
  grep -q '"finish_reason":"length"' "$WORK/s1" && grep -q '^data: \[DONE\]$' "$WORK/s1" || fail "the stream was cut: $(last_events "$WORK/s1")"
  stopped_clean
}

stopped_clean() {
  expect_property Result success
  expect_property ExecMainStatus 0
  nothing_left || fail "processes are left: $(pids_of_user)"
  ! inside test -e /run/weft/weft.sock || fail "the control socket is left"
}

check_stop_deadline() {
  DRAIN=2s write_config
  start_service
  open_stream "$WORK/s2" 100000
  freeze_worker
  inside systemctl stop weftd || fail "systemctl stop failed"
  wait
  grep '^data: ' "$WORK/s2" | tail -2 | grep -q '"error"' || fail "no error event ends the stream: $(last_events "$WORK/s2")"
  stopped_clean
  write_config
  start_service
}

check_stop_while_loading() {
  hold_loading
  inside systemctl stop weftd || fail "systemctl stop failed"
  stopped_clean
  start_service
}

# --- 4, 5: watchdog, worker ---------------------------------------------------------------------------------------------

check_watchdog() {
  mark
  drop_in $'WatchdogSec=4\nLimitCORE=0'
  inside systemctl restart weftd || fail "restart failed"
  local main worker fed
  main=$(property MainPID) worker=$(pids_of weft-worker) fed=$(property WatchdogTimestampMonotonic)
  wait_until 30 fed_after $((fed + 6000000)) ||
    fail "the watchdog is not fed"
  expect_property NRestarts 0
  signal STOP "$main"
  wait_until 30 main_pid_changed "$main" || fail "systemd did not replace the stopped daemon"
  wait_until 30 state_is active || fail "the service did not come back"
  expect_property NRestarts 1
  journal_has 'Watchdog timeout' || fail "the journal does not say why"
  [ ! -d "/proc/$LEADER/root/proc/$worker" ] || fail "the old worker $worker lives on"
  ask
  drop_in ""
  fresh_service
}

check_worker_death() {
  local main worker
  main=$(property MainPID) worker=$(pids_of weft-worker)
  open_stream "$WORK/w" 100000
  signal KILL "$worker"
  wait
  grep '^data: ' "$WORK/w" | tail -2 | grep -q '"error"' || fail "no error event ends the stream: $(last_events "$WORK/w")"
  expect_property ActiveState active
  wait_until 30 healthy || fail "no new worker"
  ask
  expect_property MainPID "$main"
  expect_property NRestarts 0
}

# --- 6: what is wrong stays down --------------------------------------------------------------------------------------

# start_refused PATTERN: start fails with 78, says PATTERN in the journal, and is not tried again.
start_refused() {
  local begin=$SECONDS
  if inside timeout 60 systemctl start weftd; then fail "systemctl start succeeded"; fi
  # A unit that waits for its restart would be "activating" here.
  expect_property ActiveState failed
  expect_property Result exit-code
  expect_property ExecMainStatus 78
  expect_property NRestarts 0
  journal_has "$1" || fail "the journal does not say $1"
  nothing_left || fail "processes are left"
  [ $((SECONDS - begin)) -lt 60 ] || fail "it took $((SECONDS - begin)) s"
}

check_unknown_key() {
  inside systemctl stop weftd
  mark
  write_config "$MODEL" $'[http]\nbody_mx = 1'
  start_refused 'weft\.toml:5:1: .*body_mx.*body_max'
  fresh_service
}

check_missing_config() {
  inside systemctl stop weftd
  mark
  inside rm /etc/weft/weft.toml
  start_refused '/etc/weft/weft\.toml'
  fresh_service
}

check_wrong_model_directory() {
  inside systemctl stop weftd
  mark
  write_config /var/lib/weft/models/absent
  start_refused 'absent.*config\.json'
  fresh_service
}

# One good and one damaged model: the good one is served, and the status names the other.
check_one_of_two_models() {
  inside systemctl stop weftd
  write_config "$MODEL" $'[[deployment]]\nname = "bad"\nmodel = "/var/lib/weft/models/bad"\nmemory = "64MiB"'
  inside sh -c 'cp -r /var/lib/weft/models/micro-k3 /var/lib/weft/models/bad && truncate -s 1000 /var/lib/weft/models/bad/model-00004-of-00012.safetensors'
  start_service
  ask
  property StatusText | grep -q 'bad: failed.*model-00004' || fail "the status text is: $(property StatusText)"
  expect_property NRestarts 0
  inside rm -r /var/lib/weft/models/bad
  fresh_service
}

# --- 7: the unit file -------------------------------------------------------------------------------------------------

check_verify() {
  local out
  out=$(inside systemd-analyze verify weftd.service 2>&1) && [ -z "$out" ] || fail "systemd-analyze verify: $out"
}

check_exposure() {
  local out
  out=$(inside systemd-analyze security --no-pager --threshold=20 weftd.service) || fail "exposure: $(tail -1 <<<"$out")"
  echo "note: $(tail -1 <<<"$out")"
}

# --- 8: restart, signals ----------------------------------------------------------------------------------------------

check_restart_with_clients() {
  local main i
  main=$(property MainPID)
  open_frozen_stream "$WORK/r1"
  # Two more clients, whose requests the held worker has not even seen.
  for i in 2 3; do
    inside curl -sN --max-time 240 "$URL/v1/chat/completions" -d '{"model":"micro-k3","stream":true,
      "messages":[{"role":"user","content":"What is 38 + 47?"}]}' >"$WORK/r$i" 2>&1 9>&- &
  done
  wait_until 20 three_requests || fail "weftd does not have three requests"
  inside systemctl restart --no-block weftd
  wait_until 20 state_is deactivating || fail "the unit is not stopping"
  signal CONT "$WORKER"
  wait
  for i in 1 2 3; do
    grep -q '^data: \[DONE\]$' "$WORK/r$i" && stream_complete "$WORK/r$i" || fail "stream $i was cut: $(last_events "$WORK/r$i")"
  done
  wait_until 60 main_pid_changed "$main" || fail "it is still process $main"
  wait_until 60 state_is active || fail "the service did not come back"
  expect_property NRestarts 0
  ask
}
three_requests() { [ "$(inside weftctl requests list --json | grep -oE '"id" *: *"' | wc -l)" = 3 ]; }
stream_complete() { ! grep -q '"error"' "$1"; }

check_second_signal_hurries() {
  mark
  open_stream "$WORK/h" 100000
  freeze_worker
  inside systemctl kill --kill-who=main -s TERM weftd
  wait_until 20 journal_has draining || fail "the first SIGTERM does not drain"
  stream_open "$WORK/h" || fail "the first SIGTERM ended the stream: $(last_events "$WORK/h")"
  inside systemctl kill --kill-who=main -s TERM weftd
  # Far below drain_timeout (200 s): a few seconds of grace for a worker that does not answer.
  wait_until 30 state_is inactive || fail "the second SIGTERM does not hurry"
  wait
  grep '^data: ' "$WORK/h" | tail -2 | grep -q '"error"' || fail "no error event ends the stream: $(last_events "$WORK/h")"
  stopped_clean
  start_service
}

check_hangup() {
  local main
  main=$(property MainPID)
  signal HUP "$main"
  wait_until 20 journal_has SIGHUP || fail "weftd does not say what it makes of SIGHUP"
  expect_property MainPID "$main"
  ask
}

# A drain that weftctl began is no signal: the first SIGTERM after it still waits for the streams.
check_stop_after_drain() {
  mark
  open_frozen_stream "$WORK/d"
  inside weftctl drain >/dev/null || fail "weftctl drain failed"
  inside systemctl stop --no-block weftd
  wait_until 20 state_is deactivating || fail "the unit is not stopping"
  ! wait_until 2 grep -q '"error"' "$WORK/d" || fail "the stream was cut: $(last_events "$WORK/d")"
  signal CONT "$WORKER"
  wait_until 180 state_is inactive || fail "the unit did not stop"
  wait
  grep -q '^data: \[DONE\]$' "$WORK/d" || fail "the stream was cut: $(last_events "$WORK/d")"
  stopped_clean
  start_service
}

run_checks() {
  step "1 sysusers and tmpfiles make user, directories and a first configuration" check_users_and_directories
  step "7 systemd-analyze verify is clean" check_verify
  step "1 the example configuration starts" check_example_config_starts
  step "1 systemctl start returns when the model is ready" check_start
  step "1 the unit is activating while the model loads" check_active_means_ready
  step "1 systemctl status shows the status text" check_status_text
  step "1 processes run as weft, without capabilities, behind a system call filter" check_user_and_sandbox
  step "1 weftctl works for root and not for nobody" check_weftctl
  step "2 a chat streams" check_chat_streams
  step "3 stop in mid-stream: the stream finishes, the unit ends clean" check_stop_lets_streams_finish
  step "3 stop in mid-stream, deadline passes: the stream ends with an error event" check_stop_deadline
  step "3 stop while the model loads" check_stop_while_loading
  step "4 a stopped daemon is killed by the watchdog and replaced with its worker" check_watchdog
  step "5 a killed worker is replaced, the unit stays active" check_worker_death
  step "6 an unknown key: status 78, line and column, no restart" check_unknown_key
  step "6 no configuration file: status 78, no restart" check_missing_config
  step "6 a wrong model directory: status 78, no restart" check_wrong_model_directory
  step "6 one damaged model of two: the other is served" check_one_of_two_models
  step "7 systemd-analyze security: exposure at most 2.0" check_exposure
  step "8 restart with clients connected" check_restart_with_clients
  step "8 a second SIGTERM hurries" check_second_signal_hurries
  step "8 SIGHUP ends nothing" check_hangup
  step "8 SIGTERM after weftctl drain still lets streams finish" check_stop_after_drain
}
