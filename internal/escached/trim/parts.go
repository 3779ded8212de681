package trim

import "time"

const (
	// firstPart is how much is trimmed at once in the beginning. Then it is adapted, within these bounds, so that
	// a part takes between the two times: a part that was begun cannot be stopped, and each has its cost.
	firstPart, leastPart, mostPart = int64(1 << 30), int64(64 << 20), int64(1 << 40)
	quick, slow                    = 500 * time.Millisecond, 3 * time.Second
)

// parts trims a filesystem part by part.
type parts struct {
	size int64
	// trim trims a part, and returns how many bytes were discarded.
	trim func(start, length int64) (int64, error)
	now  func() time.Time
}

// run trims from start until all is done, or the time is up. It trims one part at least: whoever repeats a
// request that has too little time gets on all the same.
func (p parts) run(start int64, end time.Time) (Result, error) {
	result, part := Result{Next: start}, firstPart
	for result.Next < p.size {
		begun := p.now()
		length := min(part, p.size-result.Next)
		trimmed, err := p.trim(result.Next, length)
		if err != nil {
			return result, err
		}
		result.Next += length
		result.Trimmed += trimmed
		now := p.now()
		if !now.Before(end) {
			break
		}
		switch took := now.Sub(begun); {
		case took < quick:
			part = min(part*2, mostPart)
		case took > slow:
			part = max(part/2, leastPart)
		}
	}
	result.Done = result.Next >= p.size
	return result, nil
}
