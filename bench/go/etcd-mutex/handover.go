package main

import (
	"encoding/json"
	"sync"
)

// As jobs/hand-over.mjs.
func (l *locks) handOver(argument json.RawMessage) interface{} {
	var times struct{ From, Until float64 }
	must(json.Unmarshal(argument, &times))
	var mutex sync.Mutex
	holds, failures, lastFailure := [][3]float64{}, 0, ""
	waitsSince := 0.0

	wait := func() release {
		for {
			release, err := l.acquire(0, "hot")
			if err == nil {
				return release
			}
			mutex.Lock()
			failures, lastFailure = failures+1, err.Error()
			mutex.Unlock()
		}
	}
	work := func() {
		for now() < times.Until {
			askedAt := now()
			mutex.Lock()
			waitsSince = askedAt
			mutex.Unlock()
			release := wait()
			acquiredAt := now()
			mutex.Lock()
			waitsSince = 0
			mutex.Unlock()
			sleepUntil(acquiredAt + l.task.Params.WorkMs)
			mutex.Lock()
			holds = append(holds, [3]float64{askedAt, acquiredAt, now()})
			mutex.Unlock()
			must(release())
		}
	}

	go work()
	sleepUntil(times.From)
	cpuBefore := cpuMs()
	sleepUntil(times.Until)
	mutex.Lock()
	defer mutex.Unlock()
	answer := map[string]interface{}{"holds": holds, "failures": failures, "lastFailure": lastFailure, "cpuMs": cpuMs() - cpuBefore}
	if waitsSince > 0 {
		answer["waitsSince"] = waitsSince
	}
	return answer
}
