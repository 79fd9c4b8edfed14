// Drives asynq for the comparison that `make bench` prints.
//
//	asynq-bench throughput --port P --tasks N [--batch B] [--payload-bytes 100] [--concurrency C] [--producers C]
//	asynq-bench latency    --port P --rate R --seconds T [--payload-bytes 100] [--concurrency C]
//	asynq-bench delayed    --port P --tasks N --delay-ms D --spread-ms S [--concurrency C]
//	asynq-bench drain      --port P --tasks N [--payload-bytes 100] [--concurrency C]
//	asynq-bench pickup     --port P --tasks N --pause-ms D [--payload-bytes 100] [--concurrency C]
//	asynq-bench fill       --port P --tasks N [--batch B] [--payload-bytes 100]
//
// Talks to the Redis at 127.0.0.1:P and prints one line of JSON. The BullMQ
// driver next door has the same command line and output.
//
// Settings are asynq's defaults: finished tasks are deleted. (BullMQ by default
// keeps finished jobs, as Windlass keeps results.)
//
// asynq has no way to add tasks in bulk. For every --batch it therefore sends
// them one by one from several goroutines; the number is only repeated in the
// output.
//
// asynq polls: an idle server looks for work once a second or so, and for delayed
// tasks every five seconds. The modes that run a server take one more option,
// --check-interval-ms, which sets both intervals, so that asynq can also be shown
// tuned for promptness. Without it, they stay as asynq sets them.
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
)

const (
	taskType     = "noop"
	fillInFlight = 16               // adds under way at once in mode fill
	maxInFlight  = 1000             // bound of the open loop in mode latency
	warmUp       = 3                // tasks before those that count in mode pickup
	patience     = 30 * time.Second // give up when nothing was handled for so long
)

// All times are taken as durations since this moment. time.Since reads the
// monotonic clock.
var started = time.Now()

func now() time.Duration { return time.Since(started) }

func fail(code int, sentence string, args ...any) {
	fmt.Fprintf(os.Stderr, "asynq bench: "+sentence+"\n", args...)
	os.Exit(code)
}

// ---- command line ----

type options struct {
	mode                      string
	port, tasks, batch        int
	payloadBytes, concurrency int
	rate, seconds             int
	delayMs, spreadMs         int
	pauseMs                   int
	checkIntervalMs           int
	producers                 int
	queue                     string
}

func readArguments(args []string) options {
	// A value of 0 means that the option must be given; -1 that it may be left out.
	o := options{batch: 1, payloadBytes: 100, concurrency: 16, checkIntervalMs: -1, producers: -1}
	all := map[string]*int{
		"port": &o.port, "tasks": &o.tasks, "batch": &o.batch,
		"payload-bytes": &o.payloadBytes, "concurrency": &o.concurrency,
		"rate": &o.rate, "seconds": &o.seconds, "delay-ms": &o.delayMs,
		"spread-ms": &o.spreadMs, "pause-ms": &o.pauseMs,
		"check-interval-ms": &o.checkIntervalMs, "producers": &o.producers,
	}
	modes := map[string]string{
		"throughput": "port tasks batch payload-bytes concurrency producers check-interval-ms",
		"latency":    "port rate seconds payload-bytes concurrency check-interval-ms",
		"delayed":    "port tasks delay-ms spread-ms concurrency check-interval-ms",
		"drain":      "port tasks payload-bytes concurrency check-interval-ms",
		"pickup":     "port tasks pause-ms payload-bytes concurrency check-interval-ms",
		"fill":       "port tasks batch payload-bytes",
	}
	if len(args) > 0 {
		o.mode = args[0]
	}
	names, known := modes[o.mode]
	if !known {
		fail(2, "The first argument must be one of throughput, latency, delayed, drain, pickup, fill.")
	}
	flags := flag.NewFlagSet(o.mode, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	for _, name := range strings.Fields(names) {
		flags.IntVar(all[name], name, *all[name], "")
	}
	if err := flags.Parse(args[1:]); err != nil {
		fail(2, "%v.", err)
	}
	if flags.NArg() > 0 {
		fail(2, "The argument '%s' is not understood.", flags.Arg(0))
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for _, name := range strings.Fields(names) {
		value := *all[name]
		switch {
		case !given[name] && value == 0:
			fail(2, "Mode %s needs --%s.", o.mode, name)
		case given[name] && (value < 1 || value > 999_999_999):
			fail(2, "--%s must be a whole number from 1, not %d.", name, value)
		}
	}
	if o.port > 65535 {
		fail(2, "--port must be at most 65535, not %d.", o.port)
	}
	if o.producers < 0 {
		o.producers = o.concurrency
	}
	// A queue of its own for each run: what an earlier run left is not counted.
	o.queue = fmt.Sprintf("bench-%s-%d", o.mode, time.Now().UnixMilli())
	return o
}

func (o options) redis() asynq.RedisClientOpt {
	return asynq.RedisClientOpt{Addr: fmt.Sprintf("127.0.0.1:%d", o.port)}
}

// ---- producer ----

// A task's payload is its number, a time, and filler up to the wanted size.
func payload(o options, id int, at time.Duration) []byte {
	bytes := make([]byte, max(16, o.payloadBytes))
	binary.LittleEndian.PutUint64(bytes[0:], uint64(id))
	binary.LittleEndian.PutUint64(bytes[8:], uint64(at))
	for i := 16; i < len(bytes); i++ {
		bytes[i] = 'x'
	}
	return bytes
}

func readPayload(bytes []byte) (id int, at time.Duration) {
	return int(binary.LittleEndian.Uint64(bytes[0:])), time.Duration(binary.LittleEndian.Uint64(bytes[8:]))
}

func openClient(o options) *asynq.Client {
	client := asynq.NewClient(o.redis())
	if err := client.Ping(); err != nil {
		fail(1, "Redis at 127.0.0.1 failed: %v", err)
	}
	return client
}

func enqueue(client *asynq.Client, o options, id int, at time.Duration, more ...asynq.Option) {
	task := asynq.NewTask(taskType, payload(o, id, at))
	if _, err := client.Enqueue(task, append(more, asynq.Queue(o.queue))...); err != nil {
		fail(1, "Adding a task failed: %v", err)
	}
}

// addAll calls add for tasks 0..tasks-1 from that many goroutines.
func addAll(tasks, goroutines int, add func(id int)) {
	var next atomic.Int64
	var group sync.WaitGroup
	for range goroutines {
		group.Add(1)
		go func() {
			defer group.Done()
			for id := int(next.Add(1)) - 1; id < tasks; id = int(next.Add(1)) - 1 {
				add(id)
			}
		}()
	}
	group.Wait()
}

// addAtRate calls add for a number of tasks at an even rate, whether or not
// earlier ones were handled.
func addAtRate(tasks, rate int, add func(id int)) {
	inFlight := make(chan struct{}, maxInFlight)
	start := now()
	for id := range tasks {
		sendAt := start + time.Duration(float64(id)/float64(rate)*float64(time.Second))
		time.Sleep(sendAt - now())
		inFlight <- struct{}{}
		go func() {
			add(id)
			<-inFlight
		}()
	}
}

// ---- server ----

// A producer adds all tasks. In mode throughput it calls added after each.
type producer func(client *asynq.Client, added func())

type outcome struct {
	seconds             float64
	handled, duplicates int
}

// produceAndWork runs the producer and one server. onTask gets each task's time
// when the handler starts. Returns when every task was handled, or when nothing
// happened for too long.
func produceAndWork(o options, tasks int, produce producer, onTask func(at time.Duration)) outcome {
	var handled, duplicates, lastProgress atomic.Int64
	timesHandled := make([]atomic.Int32, tasks)
	finished := make(chan struct{})
	handler := func(_ context.Context, task *asynq.Task) error {
		id, at := readPayload(task.Payload())
		onTask(at)
		lastProgress.Store(int64(now()))
		if timesHandled[id].Add(1) > 1 {
			duplicates.Add(1)
		} else if int(handled.Add(1)) == tasks {
			close(finished)
		}
		return nil
	}
	config := asynq.Config{
		Concurrency: o.concurrency,
		Queues:      map[string]int{o.queue: 1},
		LogLevel:    asynq.WarnLevel,
	}
	if o.checkIntervalMs > 0 {
		config.TaskCheckInterval = time.Duration(o.checkIntervalMs) * time.Millisecond
		config.DelayedTaskCheckInterval = config.TaskCheckInterval
	}
	server := asynq.NewServer(o.redis(), config)
	client := openClient(o)
	serve := func() {
		if err := server.Start(asynq.HandlerFunc(handler)); err != nil {
			fail(1, "The server did not start: %v", err)
		}
	}

	if o.mode == "drain" {
		produce(client, nil) // the queue is full before the server starts
	}
	start := now()
	lastProgress.Store(int64(start))
	if o.mode == "throughput" {
		// A server that finds its queue empty sleeps for about a second. To keep
		// that out of the result, it starts when the first task is there.
		first := make(chan struct{})
		go produce(client, sync.OnceFunc(func() { close(first) }))
		<-first
		serve()
	} else {
		serve()
		if o.mode != "drain" {
			go produce(client, nil)
		}
	}

	wait := patience + time.Duration(o.delayMs)*time.Millisecond
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for waiting := true; waiting; {
		select {
		case <-finished:
			waiting = false
		case <-tick.C:
			waiting = now()-time.Duration(lastProgress.Load()) < wait
		}
	}
	seconds := (now() - start).Seconds()
	server.Shutdown() // lets running handlers end, so that late duplicates count
	return outcome{seconds, int(handled.Load()), int(duplicates.Load())}
}

// collector keeps durations that several handlers report at once.
type collector struct {
	sync.Mutex
	values []time.Duration
}

func (c *collector) add(value time.Duration) {
	c.Lock()
	c.values = append(c.values, value)
	c.Unlock()
}

func (c *collector) sorted() []time.Duration {
	sort.Slice(c.values, func(a, b int) bool { return c.values[a] < c.values[b] })
	return c.values
}

// percentileMs is the value that the share q of all values does not exceed.
func percentileMs(sorted []time.Duration, q float64) *float64 {
	if len(sorted) == 0 {
		return nil
	}
	value := sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
	ms := float64(value.Microseconds()) / 1000
	return &ms
}

func round(number float64) float64 { return math.Round(number*1000) / 1000 }

// ---- modes ----

func throughput(o options) (result any, complete bool) {
	produce := func(client *asynq.Client, added func()) {
		addAll(o.tasks, o.producers, func(id int) {
			enqueue(client, o, id, 0)
			added()
		})
	}
	out := produceAndWork(o, o.tasks, produce, func(time.Duration) {})
	result = struct {
		Peer       string  `json:"peer"`
		Mode       string  `json:"mode"`
		Tasks      int     `json:"tasks"`
		Batch      int     `json:"batch"`
		Seconds    float64 `json:"seconds"`
		Handled    int     `json:"handled"`
		Duplicates int     `json:"duplicates"`
	}{"asynq", o.mode, o.tasks, o.batch, round(out.seconds), out.handled, out.duplicates}
	return result, out.handled == o.tasks && out.duplicates == 0
}

func latency(o options) (result any, complete bool) {
	tasks := o.rate * o.seconds
	var waits collector
	produce := func(client *asynq.Client, _ func()) {
		addAtRate(tasks, o.rate, func(id int) { enqueue(client, o, id, now()) })
	}
	out := produceAndWork(o, tasks, produce, func(sent time.Duration) { waits.add(now() - sent) })
	return summary(o, &waits), out.handled == tasks
}

func summary(o options, waits *collector) any {
	sorted := waits.sorted()
	return struct {
		Peer  string   `json:"peer"`
		Mode  string   `json:"mode"`
		Tasks int      `json:"tasks"`
		P50   *float64 `json:"p50_ms"`
		P99   *float64 `json:"p99_ms"`
		Max   *float64 `json:"max_ms"`
	}{"asynq", o.mode, len(sorted), percentileMs(sorted, 0.5), percentileMs(sorted, 0.99), percentileMs(sorted, 1)}
}

// The queue is full before the server starts. The clock runs from the first
// handler to the last.
func drain(o options) (result any, complete bool) {
	var first, last atomic.Int64
	produce := func(client *asynq.Client, _ func()) {
		addAll(o.tasks, fillInFlight, func(id int) { enqueue(client, o, id, 0) })
	}
	out := produceAndWork(o, o.tasks, produce, func(time.Duration) {
		at := int64(now())
		first.CompareAndSwap(0, at)
		last.Store(at)
	})
	seconds := time.Duration(last.Load() - first.Load()).Seconds()
	result = struct {
		Peer       string  `json:"peer"`
		Mode       string  `json:"mode"`
		Tasks      int     `json:"tasks"`
		Seconds    float64 `json:"seconds"`
		Handled    int     `json:"handled"`
		Duplicates int     `json:"duplicates"`
	}{"asynq", o.mode, o.tasks, round(seconds), out.handled, out.duplicates}
	return result, out.handled == o.tasks && out.duplicates == 0
}

// How long an idle server takes to start a task. The next one is added when the
// server has had nothing to do for a while: the pause, or up to twice as long.
func pickup(o options) (result any, complete bool) {
	var waits collector
	tasks := warmUp + o.tasks
	handled := make(chan struct{}, tasks)
	produce := func(client *asynq.Client, _ func()) {
		for id := range tasks {
			time.Sleep(time.Duration(float64(o.pauseMs) * (1 + rand.Float64()) * float64(time.Millisecond)))
			sent := now()
			if id < warmUp {
				sent = 0
			}
			enqueue(client, o, id, sent)
			<-handled
		}
	}
	out := produceAndWork(o, tasks, produce, func(sent time.Duration) {
		if sent > 0 {
			waits.add(now() - sent)
		}
		handled <- struct{}{}
	})
	return summary(o, &waits), out.handled == tasks
}

// asynq keeps due times in whole seconds, rounded down, so it may run a task
// before its time: its lateness is then negative, and it counts as early.
func delayed(o options) (result any, complete bool) {
	var lateness collector
	produce := func(client *asynq.Client, _ func()) {
		addAll(o.tasks, o.concurrency, func(id int) {
			spread := float64(o.spreadMs) * float64(id) / float64(o.tasks) // D..D+S, evenly
			delay := time.Duration((float64(o.delayMs) + spread) * float64(time.Millisecond))
			enqueue(client, o, id, now()+delay, asynq.ProcessIn(delay))
		})
	}
	out := produceAndWork(o, o.tasks, produce, func(due time.Duration) { lateness.add(now() - due) })
	sorted := lateness.sorted()
	early := sort.Search(len(sorted), func(i int) bool { return sorted[i] >= 0 })
	result = struct {
		Peer  string   `json:"peer"`
		Mode  string   `json:"mode"`
		Tasks int      `json:"tasks"`
		Early int      `json:"early"`
		P50   *float64 `json:"p50_ms"`
		P99   *float64 `json:"p99_ms"`
	}{"asynq", o.mode, len(sorted), early, percentileMs(sorted, 0.5), percentileMs(sorted, 0.99)}
	return result, out.handled == o.tasks
}

func fill(o options) (result any, complete bool) {
	client := openClient(o)
	start := now()
	addAll(o.tasks, fillInFlight, func(id int) { enqueue(client, o, id, 0) })
	result = struct {
		Peer    string  `json:"peer"`
		Mode    string  `json:"mode"`
		Tasks   int     `json:"tasks"`
		Seconds float64 `json:"seconds"`
	}{"asynq", o.mode, o.tasks, round((now() - start).Seconds())}
	return result, true
}

func main() {
	o := readArguments(os.Args[1:])
	run := map[string]func(options) (any, bool){
		"throughput": throughput, "latency": latency, "delayed": delayed,
		"drain": drain, "pickup": pickup, "fill": fill,
	}[o.mode]
	result, complete := run(o)
	line, err := json.Marshal(result)
	if err != nil {
		fail(1, "The result is no JSON: %v", err)
	}
	fmt.Println(string(line))
	if !complete {
		fail(1, "Not every task was handled exactly once.")
	}
}
