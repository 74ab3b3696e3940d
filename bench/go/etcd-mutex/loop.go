package main

import (
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
)

const keysPerWorker = 16

type tally struct {
	sync.Mutex
	waits, cycles histogram
	shares        []int
	waitingSince  []float64
	turns         turns
	failures      int
	lastFailure   string
}

// Who had the key and when.
type turns struct {
	Workers []int     `json:"workers"`
	Times   []float64 `json:"times"`
}

// As jobs/loop.mjs.
func (l *locks) run(argument json.RawMessage) interface{} {
	var times struct{ From, Until float64 }
	must(json.Unmarshal(argument, &times))
	workers := l.task.Params.Workers
	all := &tally{shares: make([]int, workers), waitingSince: make([]float64, workers), turns: turns{[]int{}, []float64{}}}
	for worker := 0; worker < workers; worker++ {
		go l.work(worker, times.From, times.Until, all)
	}
	sleepUntil(times.From)
	cpuBefore := cpuMs()
	sleepUntil(times.Until)
	all.Lock()
	defer all.Unlock()
	cpu := cpuMs() - cpuBefore
	for _, since := range all.waitingSince {
		if since > 0 && since < times.Until {
			all.waits.record(times.Until - since)
		}
	}
	tries := map[string]int64{"applied": atomic.LoadInt64(&l.applied), "committed": atomic.LoadInt64(&l.committed)}
	return map[string]interface{}{
		"tries": tries, "waits": &all.waits, "cycles": &all.cycles, "shares": all.shares, "turns": all.turns,
		"failures": all.failures, "lastFailure": all.lastFailure, "cpuMs": cpu,
	}
}

func (l *locks) work(worker int, from, until float64, all *tally) {
	its := l.task.Params
	startedAt := now()
	for turn := 0; startedAt < until; turn++ {
		key := "hot"
		if !its.Shared {
			key = fmt.Sprintf("%d:%d:%d", its.ProcessIndex, worker, turn%keysPerWorker)
		}
		all.begin(worker, startedAt)
		release, err := l.acquire(worker, key)
		for err != nil {
			all.failed(err, from)
			if now() > until {
				return
			}
			release, err = l.acquire(worker, key)
		}
		acquiredAt := now()
		if err := release(); err != nil {
			all.failed(err, from)
		}
		endedAt := now()
		all.end(worker, its.Shared, startedAt, acquiredAt, endedAt, endedAt >= from && endedAt < until)
		startedAt = endedAt
	}
}

func (t *tally) begin(worker int, at float64) {
	t.Lock()
	defer t.Unlock()
	t.waitingSince[worker] = at
}

func (t *tally) end(worker int, shared bool, startedAt, acquiredAt, endedAt float64, counts bool) {
	t.Lock()
	defer t.Unlock()
	t.waitingSince[worker] = 0
	if !counts {
		return
	}
	t.waits.record(acquiredAt - startedAt)
	t.shares[worker]++
	if shared {
		t.turns.Workers = append(t.turns.Workers, worker)
		t.turns.Times = append(t.turns.Times, acquiredAt)
	} else {
		t.cycles.record(endedAt - startedAt)
	}
}

func (t *tally) failed(err error, from float64) {
	t.Lock()
	defer t.Unlock()
	if now() < from {
		return
	}
	t.failures++
	t.lastFailure = err.Error()
}
