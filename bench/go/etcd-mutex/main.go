// Go's own mutex, session, election and STM on etcd, doing what the jobs in bench/jobs do: it is asked on stdin and answers on stdout, a line of JSON each, with what
// a process of Node's would answer.
package main

import (
	"context"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
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
	What         string
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
	client, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(strings.TrimPrefix(its.URL, "etcd://"), ","), DialTimeout: 5 * time.Second})
	must(err)
	locks := &locks{client: client, task: its}
	// The key of a mutex is named after its session: who waits for the same one needs a session of its own.
	sessions := 1
	if its.JobName == "convoy" || its.Params.Shared || its.Params.What == "mutex" {
		sessions = its.Params.Workers
	}
	for len(locks.sessions) < sessions {
		session, err := concurrency.NewSession(client, concurrency.WithTTL(its.Params.TTLMs/1000))
		must(err)
		locks.sessions = append(locks.sessions, session)
	}
	warmUp, err := locks.acquire(0, "warm-up")
	must(err)
	must(warmUp())
	if its.JobName == "hand-over" {
		return map[string]job{"run": locks.handOver}
	}
	return map[string]job{"run": locks.run, "pass": locks.pass}
}

type locks struct {
	client   *clientv3.Client
	sessions []*concurrency.Session
	task     task
	// Of transactions.
	applied, committed int64
}

// Gives back what was acquired.
type release func() error

// As lib/doing.mjs.
func (l *locks) acquire(worker int, key string) (release, error) {
	background := context.Background()
	name := l.task.Prefix + "/" + key
	session := l.sessions[worker%len(l.sessions)]
	switch l.task.Params.What {
	case "session":
		own, err := concurrency.NewSession(l.client, concurrency.WithTTL(l.task.Params.TTLMs/1000))
		return func() error { return own.Close() }, err
	case "election":
		election := concurrency.NewElection(session, name)
		err := election.Campaign(background, "bench")
		return func() error { return election.Resign(background) }, err
	case "transfer":
		return func() error { return nil }, l.transfer(name+"/from", name+"/to")
	default:
		mutex := concurrency.NewMutex(session, name)
		err := mutex.Lock(background)
		return func() error { return mutex.Unlock(background) }, err
	}
}

func (l *locks) transfer(from, to string) error {
	_, err := concurrency.NewSTM(l.client, func(stm concurrency.STM) error {
		atomic.AddInt64(&l.applied, 1)
		a, _ := strconv.Atoi(stm.Get(from))
		b, _ := strconv.Atoi(stm.Get(to))
		stm.Put(from, strconv.Itoa(a-1))
		stm.Put(to, strconv.Itoa(b+1))
		return nil
	}, concurrency.WithPrefetch(from, to))
	if err == nil {
		atomic.AddInt64(&l.committed, 1)
	}
	return err
}

func must(err error) {
	if err == nil {
		return
	}
	_ = json.NewEncoder(os.Stdout).Encode(map[string]string{"failed": err.Error()})
	os.Exit(1)
}
