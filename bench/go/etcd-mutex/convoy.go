package main

import (
	"encoding/json"
	"sync"
)

// As jobs/convoy.mjs.
func (l *locks) pass(argument json.RawMessage) interface{} {
	var convoy struct {
		Key string
		At  float64
	}
	must(json.Unmarshal(argument, &convoy))
	var mutex sync.Mutex
	waits, holds, failures, lastFailure := []float64{}, [][2]float64{}, 0, ""
	cpuBefore := cpuMs()

	wait := func(worker int) {
		startedAt := now()
		release, err := l.acquire(worker, convoy.Key)
		for err != nil {
			mutex.Lock()
			failures, lastFailure = failures+1, err.Error()
			mutex.Unlock()
			release, err = l.acquire(worker, convoy.Key)
		}
		acquiredAt := now()
		sleepUntil(acquiredAt + l.task.Params.WorkMs)
		mutex.Lock()
		waits = append(waits, acquiredAt-startedAt)
		holds = append(holds, [2]float64{acquiredAt, now()})
		mutex.Unlock()
		must(release())
	}

	sleepUntil(convoy.At)
	var all sync.WaitGroup
	for worker := 0; worker < l.task.Params.Workers; worker++ {
		all.Add(1)
		go func(worker int) {
			defer all.Done()
			wait(worker)
		}(worker)
	}
	all.Wait()
	return map[string]interface{}{
		"waits": waits, "holds": holds, "failures": failures, "lastFailure": lastFailure, "cpuMs": cpuMs() - cpuBefore,
	}
}
