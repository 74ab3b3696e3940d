// Go's own mutex on etcd, doing what the jobs in bench/jobs do: it is asked on stdin and answers on stdout, a line of JSON each, with what
// a process of Node's would answer.
package main

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
)

type request struct {
	Method   string
	Argument json.RawMessage
}

type task struct {
	JobName string
	URL     string
	Prefix  string
	Params  params
}

type params struct {
	ProcessIndex int
	TTLMs        int
	Workers      int
	Shared       bool
	WorkMs       float64
}

type job func(argument json.RawMessage) interface{}

func main() {
	answers := json.NewEncoder(os.Stdout)
	requests := json.NewDecoder(os.Stdin)
	var jobs map[string]job
	for {
		var asked request
		// Whoever asks is gone.
		if requests.Decode(&asked) != nil {
			return
		}
		var reply interface{}
		if asked.Method == "open" {
			var its task
			must(json.Unmarshal(asked.Argument, &its))
			jobs = open(its)
		} else {
			reply = jobs[asked.Method](asked.Argument)
		}
		must(answers.Encode(map[string]interface{}{"reply": reply}))
	}
}

// One client for all, since gRPC sends what is asked for at once over one connection.
func open(its task) map[string]job {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{strings.Replace(its.URL, "etcd:", "http:", 1)}, DialTimeout: 5 * time.Second})
	must(err)
	locks := &locks{client: client, task: its}
	// The key of a mutex is named after its session: who waits for the same one needs a session of its own.
	sessions := 1
	if its.JobName == "convoy" || its.Params.Shared {
		sessions = its.Params.Workers
	}
	for len(locks.sessions) < sessions {
		session, err := concurrency.NewSession(client, concurrency.WithTTL(its.Params.TTLMs/1000))
		must(err)
		locks.sessions = append(locks.sessions, session)
	}
	warmUp, err := locks.acquire(0, "warm-up")
	must(err)
	must(locks.release(warmUp))
	return map[string]job{"run": locks.run, "pass": locks.pass}
}

type locks struct {
	client   *clientv3.Client
	sessions []*concurrency.Session
	task     task
}

func (l *locks) acquire(worker int, key string) (*concurrency.Mutex, error) {
	mutex := concurrency.NewMutex(l.sessions[worker%len(l.sessions)], l.task.Prefix+"/"+key)
	return mutex, mutex.Lock(context.Background())
}

func (l *locks) release(mutex *concurrency.Mutex) error {
	return mutex.Unlock(context.Background())
}

func must(err error) {
	if err == nil {
		return
	}
	_ = json.NewEncoder(os.Stdout).Encode(map[string]string{"failed": err.Error()})
	os.Exit(1)
}
