package main

import (
	"math"
	"syscall"
	"time"
	"unsafe"
)

const clockMonotonic = 1

var began = time.Now()
var beganMs = monotonicMs()

// Milliseconds on the clock that all processes of a machine share, as in lib/clock.mjs.
func now() float64 {
	return beganMs + float64(time.Since(began))/1e6
}

func monotonicMs() float64 {
	var at syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&at)), 0); errno != 0 {
		must(errno)
	}
	return float64(at.Nano()) / 1e6
}

func sleepUntil(ms float64) {
	time.Sleep(time.Duration((ms - now()) * 1e6))
}

func cpuMs() float64 {
	var used syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e6
}

const stepsPerOctave = 32
const octaves = 50

// As in lib/stats.mjs.
type histogram struct {
	Counts [stepsPerOctave * octaves]float64 `json:"counts"`
	Max    float64                           `json:"max"`
}

func (h *histogram) record(ms float64) {
	step := int(math.Max(0, math.Log2(ms*1e6)*stepsPerOctave))
	h.Counts[step]++
	h.Max = math.Max(h.Max, ms)
}
